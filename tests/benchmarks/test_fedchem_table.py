"""The table of FedChem's runs: what is asked for, and the Markdown by hand."""

import pytest

from benchmarks.fedchem_table import overrides, parse_method, table

LINE = {
    "data": "esol", "metric": "rmse", "alpha": 0.1, "partition": "official", "split": "official", "rounds": 30, "steps": 333,
    "arguments": {}, "method": "fedavg", "extra": [],
}  # fmt: skip


def test_methods_and_their_arguments():
    assert parse_method("flit_plus:gamma=1,lam=0.1") == ("flit_plus", {"gamma": "1", "lam": "0.1"})
    assert parse_method("central") == ("central", {})
    with pytest.raises(ValueError, match="`--methods` knows central, local_only, .*, found 'flat'"):
        parse_method("flat")
    with pytest.raises(ValueError, match="`fedavg` has no objective with arguments, found 'fedavg:gamma=1'"):
        parse_method("fedavg:gamma=1")


def test_command_line_of_a_run():
    given = overrides({**LINE, "seed": 3, "method": "flit", "arguments": {"gamma": "2"}})
    options = dict(zip(given[::2], given[1::2], strict=True))
    assert options["--seed_everything"] == options["--data.init_args.seed"] == "3"
    assert options["--model.init_args.objective"] == "lit_models.objectives.FLIT"
    assert options["--model.init_args.objective.init_args.gamma"] == "2"
    assert (options["--federation.num_rounds"], options["--trainer.max_steps"]) == ("30", "333")
    lr = ["--model.init_args.optimizer.init_args.lr", "5e-4"]
    central = overrides({**LINE, "seed": 0, "method": "central", "extra": lr})
    assert central[central.index(lr[0]) + 1] == "5e-4"
    assert central[central.index("--data.init_args.num_clients") + 1] == "1"
    assert central[central.index("--federation.carry_optimizer_state") + 1] == "true"


def test_table_by_hand():
    lines = [
        {**LINE, "seed": 0, "val": 0.7, "test": 0.8}, {**LINE, "seed": 1, "val": 0.9, "test": 1.0},
        {**LINE, "seed": 2, "val": 0.5, "test": 0.5},  # FLIT has no seed 2: not in the paired difference
        {**LINE, "seed": 0, "method": "flit", "arguments": {"gamma": "2"}, "val": 0.6, "test": 0.7},
        {**LINE, "seed": 1, "method": "flit", "arguments": {"gamma": "2"}, "val": 0.6, "test": 0.7},
        {**LINE, "seed": 0, "method": "local_only", "val": None, "test": 1.5},
        {**LINE, "seed": 0, "extra": ["--a", "1"], "val": 0.6, "test": 0.6},  # another setting, never paired with these
    ]  # fmt: skip
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table(lines).split("\n")[2:]]
    setting = ["esol (rmse)", "0.1", "official", "official"]
    assert rows[-1] == ["esol (rmse, --a 1)", *setting[1:], "fedavg", "1", "0.6000", "0.6000", ""]
    assert rows[:-1] == [
        [*setting, "local_only", "1", "", "1.5000", "+0.7000"],
        [*setting, "fedavg", "3", "0.7000 ± 0.2000", "0.7667 ± 0.2517", ""],
        [*setting, "flit:gamma=2", "2", "0.6000 ± 0.0000", "0.7000 ± 0.0000", "-0.2000 [-1.4706, +1.0706]"],  # t = 12.706
    ]
