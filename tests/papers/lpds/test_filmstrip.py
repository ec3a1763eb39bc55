"""Pictures of an episode: the right geometry, the right normals and shadows, and no OpenGL."""

import hashlib
import os
import subprocess
import sys

import mujoco
import numpy as np
import pytest
import torch

from scripts.papers.lpds import filmstrip, tasks
from scripts.papers.lpds.draws import Draws
from scripts.papers.lpds.filmstrip import CAMERAS, SAMPLES, VISIBLE, Scene, pictures, snapshot
from scripts.papers.lpds.interaction import Norm

WIDTH, HEIGHT = 48, 36


def moved(task: str, steps: int = 12) -> tasks.Simulator:
    simulator = tasks.make(task, 100)
    simulator.reset(3)
    rng = np.random.default_rng(0)
    for _ in range(steps):
        simulator.step(rng.uniform(-1, 1, simulator.spec.action))
    mujoco.mj_kinematics(simulator.world.model, simulator.world.data)
    return simulator


def seen(simulator: tasks.Simulator) -> tuple[Scene, np.ndarray, ...]:
    """The scene, its eye and rays, and what they hit, of a simulator now."""
    scene, state = Scene(simulator), snapshot(simulator)
    scene.place(state)
    camera = CAMERAS[simulator.spec.name]
    at = np.array(camera.at) + state[-2, :3]
    eye, rays = filmstrip.view(camera, at, WIDTH, HEIGHT)
    return scene, eye, rays, *scene.cast(eye, rays)


@pytest.mark.parametrize("task", CAMERAS)
def test_every_ray_hits_what_mujoco_says(task: str) -> None:
    """MuJoCo's single ray, in its own model and state; also at the edges of the wide table, where
    its many rays with bounds miss."""
    simulator = moved(task)
    _, eye, rays, geom, distance = seen(simulator)
    model, data, one = simulator.world.model, simulator.world.data, np.zeros(1, dtype=np.int32)
    for ray, which, far in zip(rays.reshape(-1, 3), geom.ravel(), distance.ravel(), strict=True):
        found = mujoco.mj_ray(model, data, eye, ray, VISIBLE, 1, -1, one)
        if found >= 0:  # MuJoCo's own floors have an end
            assert (one[0], round(found, 9)) == (which, round(far, 9))
        else:
            assert which == -1 or model.geom_type[which] == mujoco.mjtGeom.mjGEOM_PLANE
    assert len(np.unique(geom)) > 5


def test_the_camera_looks_at_its_point_from_its_place() -> None:
    camera, at = CAMERAS["pen"], np.array([0.1, 0.2, 0.3])
    eye, rays = filmstrip.view(camera, at, 5, 3)
    assert np.linalg.norm(eye - at) == pytest.approx(camera.distance)
    assert np.allclose(eye + camera.distance * rays[1, 2], at)
    assert eye[2] - at[2] == pytest.approx(camera.distance * np.sin(np.radians(42)))
    top, bottom = rays[0, 2], rays[-1, 2]
    assert top[2] > bottom[2]
    middle = np.degrees(np.arccos(top @ bottom))
    assert middle == pytest.approx(2 * np.degrees(np.arctan(np.tan(np.radians(15)) * 2 / 3)))


def test_normals_of_floor_and_capsules_against_their_formulas() -> None:
    simulator = moved("halfcheetah")
    scene, state = Scene(simulator), snapshot(simulator)
    scene.place(state)
    at = np.array(CAMERAS["halfcheetah"].at) + state[-2, :3]
    eye, rays = filmstrip.view(CAMERAS["halfcheetah"], at, 640, 480)
    geom, distance = scene.cast(eye, rays)
    points = eye + distance[..., None] * rays
    normals = filmstrip.surface_normals(points, geom, rays)
    assert np.allclose(np.linalg.norm(normals, axis=-1), 1)
    assert (np.einsum("hwi,hwi->hw", normals, rays) <= 1e-12).all()
    upright = np.abs(normals[geom == 0] - (0, 0, 1)).max(axis=1) < 1e-6
    assert upright.mean() > 0.9999  # all but single pixels between two legs
    model, data = simulator.world.model, simulator.world.data
    torso = model.geom("torso").id
    away = points[geom == torso] - data.geom_xpos[torso]
    axis = data.geom_xmat[torso].reshape(3, 3)[:, 2]
    along = (away @ axis).clip(-model.geom_size[torso, 1], model.geom_size[torso, 1])
    outward = (away - along[:, None] * axis) / model.geom_size[torso, 0]
    cosine = (normals[geom == torso] * outward).sum(axis=1)
    assert len(cosine) > 500 and np.median(cosine) > 0.99 and cosine.mean() > 0.98


def test_a_hit_alone_on_its_geom_faces_the_eye() -> None:
    rays = np.broadcast_to(np.array([0.0, 0.6, -0.8]), (3, 3, 3))
    geom = np.arange(9).reshape(3, 3)
    assert np.array_equal(filmstrip.surface_normals(rays * 2.0, geom, rays), -rays)


def test_neighbours_on_another_geom_do_not_bend_a_normal() -> None:
    """Two floors, one a step of 1 mm lower, each two samples wide: all their normals point up."""
    columns = np.array([0.0, 1.0, 2.0, 3.0])
    points = np.stack([*np.meshgrid(columns, -columns[:3]), np.zeros((3, 4))], axis=-1)
    geom = np.tile([0, 0, 1, 1], (3, 1))
    points[:, 2:, 0] -= 0.9
    points[:, 2:, 2] -= 0.001
    rays = np.broadcast_to(np.array([0.0, 0.6, -0.8]), points.shape)
    assert np.allclose(filmstrip.surface_normals(points, geom, rays), (0, 0, 1))


def test_shadows_against_single_rays() -> None:
    simulator = moved("pen")
    scene, eye, rays, geom, distance = seen(simulator)
    points = eye + distance[..., None] * rays
    upward = np.broadcast_to(np.array([0.0, 0.0, 1.0]), rays.shape)
    lamp = np.array([-0.4, -1.6, 3.2])
    lit = scene._lit(lamp, points, upward, geom)
    model, data, one = simulator.world.model, simulator.world.data, np.zeros(1, dtype=np.int32)
    dark = 0
    for row, column in np.argwhere(geom >= 0):
        first = row - row % SAMPLES, column - column % SAMPLES
        same = geom[first] == geom[row, column]
        asked = points[first] if same else points[row, column]
        way, own = asked - lamp, points[row, column] - lamp
        reached = mujoco.mj_ray(model, data, lamp, way, VISIBLE, 1, -1, one)
        reached = reached if reached >= 0 else 1.0  # beyond the end of MuJoCo's own floor
        dark += reached < 0.998
        cosine = -own[2] / np.linalg.norm(own)
        assert lit[row, column] == pytest.approx(cosine if reached > 0.998 else 0.0)
    assert 20 < dark < 0.8 * geom.size
    assert (lit[geom < 0] == 0).all()


def test_the_ball_against_its_equation() -> None:
    rng = np.random.default_rng(0)
    eye, centre, radius = rng.normal(size=3) + 3, rng.normal(size=3) / 3, 0.7
    rays = rng.normal(size=(400, 3)) * 0.4 + (centre - eye)
    rays /= np.linalg.norm(rays, axis=1, keepdims=True)
    found = filmstrip._ball(eye, rays, centre, radius)
    hits = np.isfinite(found)
    entered = eye + found[hits, None] * rays[hits]
    assert np.allclose(np.linalg.norm(entered - centre, axis=1), radius)
    assert ((entered - centre) * rays[hits]).sum(axis=1).max() <= 0
    nearest = np.linalg.norm(np.cross(centre - eye, rays), axis=1)
    assert np.array_equal(hits, nearest <= radius) and 0 < hits.mean() < 1


@pytest.mark.parametrize("task", CAMERAS)
def test_the_same_snapshot_gives_the_same_picture(task: str) -> None:
    """Whatever the simulator has done since, and without a change to it."""
    simulator = moved(task)
    state, bounds = snapshot(simulator), simulator.world.model.body_bvhadr.copy()
    first = pictures(simulator, state[None], WIDTH, HEIGHT)
    before = simulator.world.data.qpos.copy()
    assert np.array_equal(simulator.world.model.body_bvhadr, bounds)
    assert np.array_equal(simulator.world.data.qpos, before)
    simulator.reset(9)
    later = pictures(simulator, np.stack([snapshot(simulator), state]), WIDTH, HEIGHT)
    assert first.shape == (1, HEIGHT, WIDTH, 3) and first.dtype == np.uint8
    assert np.array_equal(first[0], later[1])
    assert not np.array_equal(later[0], later[1])
    assert first.std() > 20


def test_the_camera_runs_along_with_the_cheetah() -> None:
    """Two tiles further, the picture is the same; one further, the tiles have changed colour."""
    simulator = moved("halfcheetah")
    state = snapshot(simulator)
    assert state[-2, :3] == pytest.approx([simulator.world.data.body("torso").xpos[0], 0, 0])
    on = np.stack([state] * 3)
    on[1, :, 0] += 2.0
    on[2, :, 0] += 1.0
    here, two, one = pictures(simulator, on, WIDTH, HEIGHT).astype(int)
    assert (np.abs(here - two) > 1).mean() < 0.005
    assert (np.abs(here - one) > 1).mean() > 0.2


def identity(task: str) -> Norm:
    spec = tasks.TASKS[task]
    return Norm(
        {
            "observation_low": -torch.ones(spec.observation),
            "observation_high": torch.ones(spec.observation),
            "action_low": -torch.ones(spec.action),
            "action_high": torch.ones(spec.action),
            "reward_scale": torch.ones(1),
        }
    )


class Forward:
    """Chunks of four equal actions, the mean of the observation."""

    def __init__(self, width: int) -> None:
        self.width = width

    def act(self, observation: torch.Tensor, draws: Draws) -> torch.Tensor:
        noise = 0.1 * draws.normal(1, 4 * self.width)
        return (observation.mean(dim=-1, keepdim=True) + noise).clamp(-1, 1)


def draws(count: int = 1) -> Draws:
    return Draws([torch.Generator().manual_seed(seed) for seed in range(count)])


@pytest.mark.parametrize(
    ("task", "horizon", "last"),
    [("halfcheetah", 10, "m"), ("pen", 7, "° off"), ("pick_place", 6, " cm off")],
)
def test_a_film_shows_the_episode_evenly(task: str, horizon: int, last: str) -> None:
    policy = Forward(tasks.TASKS[task].action)
    film = filmstrip.film(task, horizon, identity(task), policy, 5, draws(), 3, WIDTH, HEIGHT)
    assert film.frames.shape == (3, HEIGHT, WIDTH, 3)
    assert film.steps.tolist() == [0, round(horizon / 2), horizon]
    assert film.captions[0].startswith("step 0, ") and film.captions[-1].endswith(last)
    again = filmstrip.film(task, horizon, identity(task), policy, 5, draws(), 3, WIDTH, HEIGHT)
    assert np.array_equal(film.frames, again.frames) and film.score == again.score
    # The same episode by hand.
    simulator, norm, own = tasks.make(task, horizon), identity(task), draws()
    observation, rewards, successes = simulator.reset(5), [], []
    shown = pictures(simulator, snapshot(simulator)[None], WIDTH, HEIGHT)
    assert np.array_equal(film.frames[0], shown[0])
    while len(rewards) < horizon:
        chunk = policy.act(norm.observation(torch.from_numpy(observation)[None, None]), own)
        for action in norm.steps_of(chunk)[0, 0, : horizon - len(rewards)]:
            step = simulator.step(action)
            observation = step.observation
            rewards.append(step.reward)
            successes.append(step.success)
    assert film.score == tasks.score(task, rewards, successes)
    shown = pictures(simulator, snapshot(simulator)[None], WIDTH, HEIGHT)
    assert np.array_equal(film.frames[-1], shown[0])


def test_progress_in_words() -> None:
    simulator = moved("halfcheetah")
    simulator.world.data.qpos[0] = 12.34
    assert filmstrip.progress("halfcheetah", simulator, np.zeros(17)) == "12.3 m"
    observation = np.zeros(45)
    observation[33:36], observation[36:39] = (0, 0, 1), (0, np.sqrt(0.75), 0.5)
    assert filmstrip.progress("pen", simulator, observation) == "60° off"
    observation = np.zeros(39)
    observation[4:7], observation[36:39] = (0.1, 0.6, 0.0), (0.1, 0.6, 0.14)
    assert filmstrip.progress("pick_place", simulator, observation) == "14 cm off"


def test_wrong_requests_are_named() -> None:
    simulator = moved("halfcheetah", 1)
    with pytest.raises(ValueError, match=r"states are \[1, 62, 12\]; halfcheetah has .* 11, 12"):
        pictures(simulator, np.zeros((1, 62, 12)))
    request = ("halfcheetah", 4, identity("halfcheetah"), Forward(6), 5)
    with pytest.raises(ValueError, match="draws has 2 columns"):
        filmstrip.film(*request, draws(2))
    with pytest.raises(ValueError, match="frames is 0"):
        filmstrip.film(*request, draws(), 0)


def test_no_graphics_are_needed() -> None:
    """MuJoCo with graphics switched off and no display gives the same pixels."""
    code = (
        "import hashlib; from scripts.papers.lpds import filmstrip, tasks\n"
        "simulator = tasks.make('halfcheetah', 5); simulator.reset(3)\n"
        "state = filmstrip.snapshot(simulator)[None]\n"
        f"picture = filmstrip.pictures(simulator, state, {WIDTH}, {HEIGHT})\n"
        "print(hashlib.sha256(picture.tobytes()).hexdigest())"
    )
    environment = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "WAYLAND_DISPLAY")}
    environment["MUJOCO_GL"] = "disabled"
    answer = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    simulator = tasks.make("halfcheetah", 5)
    simulator.reset(3)
    picture = pictures(simulator, snapshot(simulator)[None], WIDTH, HEIGHT)
    assert answer.stdout.strip() == hashlib.sha256(picture.tobytes()).hexdigest()
