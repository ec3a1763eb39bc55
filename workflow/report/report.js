"use strict";
(() => {
  const form = document.getElementById("filters");
  const claims = [...document.querySelectorAll("details.claim")];
  const output = form.querySelector("output");

  const apply = () => {
    const paper = form.elements.paper.value;
    const verdicts = new Set(new FormData(form).getAll("verdict"));
    let shown = 0;
    for (const claim of claims) {
      const group = claim.closest("[data-paper]").dataset.paper;
      claim.hidden = (paper !== "" && group !== paper) || !verdicts.has(claim.dataset.verdict);
      shown += claim.hidden ? 0 : 1;
    }
    for (const group of document.querySelectorAll(".group")) {
      group.hidden = !group.querySelector("details.claim:not([hidden])");
    }
    for (const section of document.querySelectorAll(".paper")) {
      section.hidden = paper !== "" && section.dataset.paper !== paper;
    }
    output.textContent = shown === 0
      ? "No claim has this paper and verdict."
      : `Showing ${shown} of ${claims.length} claims.`;
  };

  // A link to a claim opens it, and drops the filters that hide it.
  const reveal = () => {
    const target = document.getElementById(location.hash.slice(1));
    if (!target) return;
    if (target.closest("[hidden]")) {
      form.reset();
      apply();
    }
    if (target.matches("details.claim")) target.open = true;
    target.scrollIntoView();
  };

  form.addEventListener("change", apply);
  form.addEventListener("submit", (event) => event.preventDefault());
  for (const button of form.querySelectorAll("button")) {
    button.addEventListener("click", () => {
      for (const claim of claims) {
        if (!claim.hidden) claim.open = button.dataset.open === "true";
      }
    });
  }
  addEventListener("hashchange", reveal);
  form.hidden = false;
  apply();
  if (location.hash) reveal();
})();
