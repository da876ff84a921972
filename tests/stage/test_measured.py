"""The rates that `dlio bench` measures decide what staging costs, and are named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dlio
from dlio.cluster.topology import Topology
from dlio.errors import UsageError
from dlio.io.filesystems import filesystem_of
from dlio.stage.choose import machine_file
from dlio.stage.choose.choice import decide, machine_of
from dlio.stage.choose.machine_file import Rates
from dlio.stage.planning.cost import Machine
from dlio.stage.run import preview, run
from tests.helpers.staging import job_of

ALONE = Topology.single()


def test_plan_and_stage_take_the_measured_rates_and_name_their_file(dataset, tmp_path):
    system = str(filesystem_of(tmp_path))
    assert machine_of(job_of(dataset, tmp_path / "node", ALONE), None).rates == ""
    machine_file.add_rates(Rates({system: 1e6}))
    path = machine_file.add_rates(Rates(write={system: 3e6}))
    machine = machine_of(job_of(dataset, tmp_path / "node", ALONE), None)
    assert (machine.client, machine.local, machine.rates) == (1e6, 3e6, str(path))
    assert machine.source == Machine(1, 0).source  # of all nodes together: not measured
    assert decide(job_of(dataset, tmp_path / "node", ALONE))[0].why.endswith(f"(rates of {path})")
    seen = preview(dataset, tmp_path / "node", topology=ALONE)
    assert seen.rates == str(path) and seen.decision.seconds >= dataset.num_bytes / 1e6
    predicted = dlio.plan(dataset, nodes=2)
    assert str(path) in predicted.chosen.why
    assert dlio.plan(dataset, nodes=2, client_rate=2e9).ways[0].seconds < predicted.ways[0].seconds


def test_the_line_of_stage_names_the_rates(dataset, tmp_path):
    path = machine_file.add_rates(Rates({str(filesystem_of(tmp_path)): 1e6}))
    by_auto = run(dataset, tmp_path / "node", topology=ALONE)[1]
    assert by_auto.rates == str(path)
    assert run(dataset, tmp_path / "node", topology=ALONE, strategy="replicate")[1].rates == ""


def test_rates_of_other_file_systems_change_nothing(dataset, tmp_path):
    machine_file.add_rates(Rates({"lustre at /nowhere": 1.0}, {"xfs at /nowhere": 1.0}))
    assert machine_of(job_of(dataset, tmp_path / "node", ALONE), None).rates == ""


@pytest.mark.parametrize("text", ["", "[1]", '{"read": {"x": -1}}', '{"read": 3}', '{"speed": {}}', "[" * 9999])
def test_a_file_that_holds_no_rates_is_named_and_left_out(text, dataset, tmp_path, caplog):
    machine_file.rates_path().write_text(text)
    assert machine_of(job_of(dataset, tmp_path / "node", ALONE), None).rates == ""
    assert str(machine_file.rates_path()) in caplog.text
    machine_file.add_rates(Rates({"ext4 at /": 1e9}))
    assert json.loads(machine_file.rates_path().read_text())["read"] == {"ext4 at /": 1e9}


def test_a_user_without_a_home_has_no_rates_unless_their_file_is_named(dataset, tmp_path, monkeypatch):
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in (machine_file.VARIABLE, "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.setattr(Path, "expanduser", lambda path: no_home())
    assert machine_of(job_of(dataset, tmp_path / "node", ALONE), None).rates == ""
    with pytest.raises(UsageError, match=machine_file.VARIABLE):
        machine_file.add_rates(Rates({"xfs at /": 1.0}))
    monkeypatch.setenv(machine_file.VARIABLE, str(tmp_path / "rates.json"))
    assert machine_file.add_rates(Rates({"xfs at /": 1.0})) == tmp_path / "rates.json"
    assert machine_file.measured() == Rates({"xfs at /": 1.0})
