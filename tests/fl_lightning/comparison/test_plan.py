"""From a comparison's YAML to cells: how changes are put together, hashes, profiles, and mistakes."""

import pytest
import yaml

from fl_lightning.comparison.changes import from_command_line, merged, nested
from fl_lightning.comparison.plan import describe, read_plan
from fl_lightning.config_files import load_yaml

BASE = {
    "seed_everything": 0,
    "federation": {
        "num_rounds": 30,
        "strategy": {"class_path": "fl_lightning.strategies.FedAvg", "init_args": {"weighting": "uniform"}},
        "engine": {"class_path": "fl_lightning.engine.WorkerProcesses", "init_args": {"num_workers": 2}},
    },
    "trainer": {"max_steps": 333},
    "model": {
        "class_path": "M",
        "init_args": {"objective": {"class_path": "lit_models.objectives.FLIT", "init_args": {"gamma": 1}}},
    },
    "data": {"class_path": "datamodules.PlanetoidDataModule", "init_args": {"root": "data", "name": "Cora", "num_clients": 3}},
}
GAMMA = "model.init_args.objective.init_args.gamma"
LOG_FROM_ZERO = {GAMMA: {"low": 0, "high": 1, "log": True}}


@pytest.fixture
def plan(tmp_path):
    def read(overrides=None, profile=None, **content):
        (tmp_path / "base.yaml").write_text(yaml.safe_dump(BASE))
        content = {"base": "base.yaml", "methods": {"FLIT": {}}, **content}
        (tmp_path / "study.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
        return read_plan(tmp_path / "study.yaml", profile, overrides)

    return read


def test_cells_are_methods_in_settings_with_seeds_and_both_baselines(plan):
    cells = plan(axes={"data": {"Cora": {}, "CS": {"data.init_args.name": "CS"}}, "clients": [3, 5]}, seeds=[0, 7]).cells
    assert len(cells) == 2 * 4 * 3
    assert [(c.setting, c.method, c.seed) for c in cells[:4]] == [
        ({"data": "Cora", "clients": "3"}, "FLIT", 0), ({"data": "Cora", "clients": "3"}, "LocalOnly", 0),
        ({"data": "Cora", "clients": "3"}, "Central", 0), ({"data": "Cora", "clients": "5"}, "FLIT", 0),
    ]  # fmt: skip
    assert [c.seed for c in cells] == [0] * 12 + [7] * 12  # whole seeds first: a budget leaves pairs
    last = cells[-1]
    assert last.central and last.config["data"]["init_args"] == {"root": "data", "name": "CS", "num_clients": 5, "seed": 7}
    assert last.config["seed_everything"] == 7 and last.config["federation"]["num_rounds"] == 30  # tells central how long
    assert cells[1].config["federation"]["strategy"] == {"class_path": "fl_lightning.strategies.LocalOnly"}
    assert cells[1].config["federation"]["clients_per_round"] == 1.0  # alone, every client trains in every round
    assert all(c.config["federation"]["engine"] == {"class_path": "fl_lightning.engine.InProcess"} for c in cells)


def test_order_of_changes(plan):
    """base < changes < axes < method < command line."""
    found = plan(
        {"data.init_args.name": "line"}, changes={GAMMA: 2, "trainer.max_steps": 5, "data.init_args.name": "changes"},
        axes={"x": {"a": {GAMMA: 3, "trainer.max_steps": 6}}}, methods={"m": {GAMMA: 4}}, baselines=[],
    ).cells[0].config  # fmt: skip
    assert found["model"]["init_args"]["objective"] == {"class_path": "lit_models.objectives.FLIT", "init_args": {"gamma": 4}}
    assert found["trainer"]["max_steps"] == 6 and found["data"]["init_args"]["name"] == "line"


def test_rounds_at_fixed_total_steps(plan):
    cells = plan(axes={"rounds": {"total_steps": 10000, "values": [15, 30, 50]}}, baselines=[]).cells
    assert [(c.config["federation"]["num_rounds"], c.config["trainer"]["max_steps"]) for c in cells] == [
        (15, 666),
        (30, 333),
        (50, 200),
    ]


def test_another_class_takes_none_of_the_old_arguments():
    old = {"class_path": "A", "init_args": {"x": 1, "y": 2}}
    assert merged(old, {"class_path": "B", "init_args": {"z": 3}}) == {"class_path": "B", "init_args": {"z": 3}}
    assert merged(old, {"class_path": "A", "init_args": {"y": 3}}) == {"class_path": "A", "init_args": {"x": 1, "y": 3}}
    assert merged(old, {"init_args": {"y": None}})["init_args"] == {"x": 1, "y": None}
    assert old == {"class_path": "A", "init_args": {"x": 1, "y": 2}}


def test_hash_is_of_what_the_result_depends_on(plan):
    first = plan().cells[0]
    assert plan({"data.init_args.root": "/elsewhere"}).cells[0].hash == first.hash
    assert plan({"federation.num_rounds": 31}).cells[0].hash != first.hash
    assert first.hash in {c.hash for c in plan(seeds=[0, 1]).cells} and len({c.hash for c in plan(seeds=[0, 1]).cells}) == 6
    assert first.hash[:10] in first.key and first.key.startswith("runs/all/FLIT/seed_0_")


def test_profiles_narrow_axes_and_add_changes(plan):
    content = {
        "axes": {"data": {"Cora": {}, "CS": {"data.init_args.name": "CS"}}, "alpha": [0.1, 1]},
        "seeds": [0, 1], "baselines": [],
        "methods": {"a": {GAMMA: 3}, "b": {}}, "changes": {"trainer.max_steps": 9},
        "profiles": {
            "quick": {
                "axes": {"data": ["CS"]}, "seeds": [0], "changes": {"federation.num_rounds": 2}, "methods": {"b": {GAMMA: 5}},
            },
            "full": {},
        },
    }  # fmt: skip
    quick = plan(**content)
    assert quick.profile == "quick" and [c.setting for c in quick.cells[::2]] == [
        {"data": "CS", "alpha": a} for a in ("0.1", "1")
    ]
    gammas = [c.config["model"]["init_args"]["objective"]["init_args"]["gamma"] for c in quick.cells]
    assert gammas == [3, 5, 3, 5]
    assert all(c.config["federation"]["num_rounds"] == 2 and c.config["trainer"]["max_steps"] == 9 for c in quick.cells)
    assert len(plan(profile="full", **content).cells) == 16


def test_searches_are_listed_with_their_trials(plan):
    space = {GAMMA: [0.5, 1, 2], "model.init_args.objective.init_args.lam": [0.1, 1]}
    found = plan(methods={"FLIT": {"search": {"space": space}}, "b": {}}, baselines=[], seeds=[3])
    (search,) = found.searches
    assert (search.trials, search.sampler, search.cell.seed) == (6, "grid", 3) and len(found.cells) == 1
    assert "search" not in search.cell.config
    assert describe(found) == ["b | seed 3", "FLIT | seed 3 | search: grid, 6 trials"]


def test_numbers_with_an_exponent_are_numbers(tmp_path):
    (tmp_path / "x.yaml").write_text("a: 1e-3\nb: 1.5E4\nc: e-3\nd: -2e3\n")
    assert load_yaml(tmp_path / "x.yaml") == {"a": 0.001, "b": 15000.0, "c": "e-3", "d": -2000.0}
    assert from_command_line(["--trainer.max_steps=3", "--federation", "null", "--data.init_args.alpha", "1e-1"]) == {
        "trainer.max_steps": 3, "federation": None, "data.init_args.alpha": 0.1,
    }  # fmt: skip


def test_yaml_runs_nothing(tmp_path):
    (tmp_path / "x.yaml").write_text("a: !!python/object/apply:os.getcwd []\n")
    with pytest.raises(ValueError, match="is not YAML"):
        load_yaml(tmp_path / "x.yaml")


def test_dotted_keys_meet_in_one_mapping():
    assert nested({"data.init_args.a": 1, "data.init_args.b": 2}, "x") == {"data": {"init_args": {"a": 1, "b": 2}}}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({"method": {}}, "unknown key `method`.*Did you mean `methods`"),
        ({"model": {}, "federation": {}}, "is a config of `fl-lightning fit`, not a comparison"),
        ({"methods": ["FedAvg"]}, "`methods` must be a mapping, e.g. .*but is `\\['FedAvg'\\]`"),
        ({"methods": {"a": "lr"}}, "`methods.a` must be a mapping, e.g. .*but is `lr`"),
        ({"changes": ["a"]}, "`changes` must be a mapping"),
        ({"axes": ["clients"]}, "`axes` must be a mapping, e.g. `{clients: "),
        ({"profiles": ["quick"]}, "`profiles` must be a mapping, e.g. `{quick: "),
        ({"profiles": {"quick": 3}}, "`profiles.quick` must be a mapping"),
        ({"profiles": {"quick": {"seed": [3]}}}, "`profiles.quick`: unknown key `seed`.*Did you mean `seeds`"),
        ({"methods": None, "profiles": {"quick": {"methods": {"a": {}}}}}, "`a` is not in `methods`, which has nothing"),
        ({"base": 3}, "needs `base:`, the path of a config .* but `base` is `3`"),
        ({"axes": {"client": [3]}}, "lists are for clients, .*Did you mean `clients`"),
        ({"axes": {"rounds": {"total_steps": 10, "values": [0]}}}, "`axes.rounds` needs whole numbers"),
        ({"axes": {"rounds": {"total_steps": "x", "values": [3]}}}, "`axes.rounds` needs whole numbers"),
        ({"axes": {"rounds": {"total_steps": 10, "values": [15]}}}, "at least one step a round"),
        ({"seed_keys": "seed_everything"}, "`seed_keys` must be a list"),
        ({"seeds": [-1]}, "`seeds` must be a list of different whole numbers from 0"),
        ({"baselines": {"Central": 3}}, "`baselines.Central` must be a mapping"),
        ({"baselines": "FedAvg"}, "not `FedAvg`; put it under `methods`"),
        ({"budget_minutes": True}, "`budget_minutes` must be a positive"),
        ({"methods": {"a": {GAMMA: 1}, "b": {GAMMA: 1}}}, "`a | seed 0` and `b | seed 0` are the same run"),
        ({"methods": {"a": {}}, "seeds": [0, 1], "seed_keys": []}, "`a | seed 0` and `a | seed 1` are the same run"),
        ({"methods": {"a": {"search": {"space": {GAMMA: [1]}, "batch": 0}}}}, "`batch` must be a whole number from 1"),
        (
            {"methods": {"a": {"search": {"space": {GAMMA: {"low": 2, "high": 1}}, "sampler": "tpe", "trials": 3}}}},
            "a range from below to above",
        ),
        (
            {"methods": {"a": {"search": {"space": LOG_FROM_ZERO, "sampler": "tpe", "trials": 3}}}},
            "log: above 0",
        ),
        ({"methods": {"a": {"search": {"space": {GAMMA: [1, 2]}, "sampler": "tpe", "trials": 0}}}}, "`trials` must be a whole"),
        ({"methods": {"a": {"search": {"space": {GAMMA: [1]}, "prune": "no"}}}}, "`prune` must be true or false"),
        ({"methods": {"a": {"model.x": 1, "rounds": 2}}}, "`methods.a`: `rounds` is no key of a config"),
        ({"base": "none.yaml"}, "none.yaml` cannot be read"),
        ({"axes": {"data": ["Cora"]}}, "`axes.data` must map labels to changes"),
        ({"seeds": 3}, "`seeds` must be a list"),
        ({"seeds": [1, 1]}, "`seeds` must be a list of different"),
        ({"baselines": ["FedAvg"]}, "not `FedAvg`; put it under `methods`"),
        ({"methods": {"Central": {}}}, "both have `Central`"),
        ({"reference": "x"}, "`reference: x` is no method"),
        ({"score": "mean"}, "`score` must be"),
        ({"budget_minutes": 0}, "`budget_minutes` must be a positive"),
        ({"profiles": {"quick": {"methods": {"c": {}}}}}, "`c` is not in `methods`"),
        ({"axes": {"d": {"A": {}}}, "profiles": {"quick": {"axes": {"d": ["B"]}}}}, "`B` is not in `axes.d`"),
        ({"methods": {"a": {"search": {"sampler": "tpe", "space": {GAMMA: [1]}}}}}, "`sampler: tpe` needs `trials`"),
        ({"methods": {"a": {"search": {"space": {GAMMA: {"low": 0, "high": 1}}}}}}, "needs a list of values"),
        ({"methods": {"a": {"search": {"space": {GAMMA: [1]}, "goal": 1}}}}, "unknown key `goal`"),
        ({"methods": {"a": {"search": {"space": {"gamma": [1]}}}}}, "`gamma` is no key of a config"),
    ],
)
def test_mistakes_are_named_before_anything_runs(plan, content, text):
    with pytest.raises(ValueError, match=text):
        plan(**content)


def test_unknown_profile_and_options(plan):
    with pytest.raises(ValueError, match="`--profile slow`: .* has quick"):
        plan(profile="slow", profiles={"quick": {}})
    with pytest.raises(ValueError, match="Unknown option `--worker`"):
        from_command_line(["--worker", "3"])
    with pytest.raises(ValueError, match="`--data.init_args.root` needs a value"):
        from_command_line(["--data.init_args.root"])


def test_seeds_of_the_command_line_replace_the_yamls(tmp_path, plan):
    assert {c.seed for c in plan(seeds=[0, 1]).cells} == {0, 1}
    (tmp_path / "base.yaml").write_text("federation: {num_rounds: 3}\n")
    (tmp_path / "s.yaml").write_text("base: base.yaml\nmethods: {a: {}}\nseeds: [0, 1]\nprofiles: {quick: {seeds: [2]}}\n")
    assert [c.seed for c in read_plan(tmp_path / "s.yaml", None, {}, [5, 7]).cells[::3]] == [5, 7]
    with pytest.raises(ValueError, match="`seeds` must be a list of different"):
        read_plan(tmp_path / "s.yaml", None, {}, [5, 5])


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("data.init_args.num_clients", "`--data.init_args.num_clients` would replace what `axes.clients.3` sets"),
        ("data.init_args.name", "what `axes.data.CS` sets"),
        ("data", "would give every seed the same `data.init_args.seed`"),
        ("federation", "what `methods.LocalOnly` sets"),
        ("federation.strategy", "what `methods.LocalOnly` sets"),
        (GAMMA, "what `methods.a` sets"),
        ("seed_everything", "every seed the same `seed_everything`; use `--seeds 0 1 2`"),
    ],
)
def test_options_that_would_make_labels_wrong_are_refused(plan, option, text):
    """They come last: with them, the table would show runs of 4 clients as runs of 3, 5 and 10."""
    axes = {"clients": [3, 5], "data": {"Cora": {}, "CS": {"data": {"init_args": {"name": "CS", "root": "data"}}}}}
    with pytest.raises(ValueError, match=text):
        plan({option: 4}, axes=axes, methods={"a": {GAMMA: 1}})


def test_options_that_refine_are_taken(plan):
    axes = {"data": {"Cora": {}, "CS": {"data": {"init_args": {"name": "CS", "root": "data"}}}}}
    encoder = {"model.init_args.encoder": {"class_path": "E", "init_args": {"hidden_channels": 8}}}
    given = {"data.init_args.root": "x", "model.init_args.encoder.init_args.hidden_channels": 16}
    cells = plan(given, axes=axes, methods={"a": encoder, "b": {GAMMA: 1}}).cells
    assert {c.config["data"]["init_args"]["root"] for c in cells} == {"x"}
    assert {c.config["model"]["init_args"]["encoder"]["init_args"]["hidden_channels"] for c in cells} == {16}


def test_each_model_has_the_same_steps_behind_it_where_the_federation_samples(plan):
    """LocalOnly trains all clients in each round: it would otherwise have fewer steps than the global model."""
    fed, local, central = plan(changes={"federation.clients_per_round": 3}).cells
    assert (fed.config["federation"]["clients_per_round"], local.config["federation"]["clients_per_round"]) == (3, 1.0)
    for cell in (fed, local, central):  # central: `fit --federation null` multiplies them
        assert (cell.config["federation"]["num_rounds"], cell.config["trainer"]["max_steps"]) == (30, 333)
    (_, sampled, _) = plan(baselines={"LocalOnly": {"federation.clients_per_round": 2}, "Central": {}}).cells
    assert sampled.config["federation"]["clients_per_round"] == 2
