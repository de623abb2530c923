"""Jobs of Slurm on two nodes: what srun and sbatch start finds itself, and a job that ends in whatever way is gone."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time

import pytest
from conftest import DEATH_BOUND_S, LIVENESS, SILENCE_BOUND_S
from hosts import two_hosts

pytestmark = pytest.mark.timeout(120)

WHY = "the nodes of Slurm are namespaces, which need root"

INSTALL = "apt-get install --no-install-recommends slurmctld slurmd slurm-client slurm-wlm-basic-plugins"

PROGRAMS = ["slurmctld", "slurmd", "srun", "sbatch", "scancel", "scontrol", "sinfo", "squeue"]

CONFIG = """
ClusterName=tests
SlurmctldHost=n1
SlurmUser=root
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/pgid
SelectType=select/cons_tres
SlurmdParameters=config_overrides
StateSaveLocation=/run/slurm-state
SlurmdSpoolDir=/run/slurm-spool
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
KillWait=5
NodeName=n1 NodeAddr={addresses[0]} CPUs=2
NodeName=n2 NodeAddr={addresses[1]} CPUs=2
PartitionName=all Nodes=ALL Default=YES State=UP
"""

RUN = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"


class Cluster:
    """A controller and two nodes, n1 and n2, that last as long as the hosts."""

    def __init__(self, hosts, folder, start):
        self.hosts, self._folder, self._start = hosts, folder, start
        config = folder / "slurm.conf"
        config.write_text(CONFIG.format(addresses=[host.address for host in hosts]))
        trusted = {"SHEAVE_INSECURE": "1", "SHEAVE_BIND": "0.0.0.0"}
        self.environment = {"SLURM_CONF": str(config), "OMP_NUM_THREADS": "1", **trusted}
        for host, name in ((hosts[0], "slurmctld"), (hosts[0], "slurmd"), (hosts[1], "slurmd")):
            host.run("mkdir", "-p", "/run/slurm-state", "/run/slurm-spool")
            log = folder / f"{host.name}-{name}.log"
            start(RUN, "sh", "-c", 'exec "$0" -D > "$1" 2>&1', name, log, on=host, **self.environment)
        self.wait_until_idle()

    def wait_until_idle(self):
        """Wait until both nodes are there and have nothing to do."""
        self.wait_for(lambda: self.query("sinfo", "--noheader", "--format=%D %T") == "2 idle", "two idle nodes")

    def wait_for(self, is_so, what, within_s=60):
        """Wait until a condition holds."""
        until = time.monotonic() + within_s
        while not is_so():
            logs = [f"{log.name}:\n{log.read_text()[-2000:]}" for log in self._folder.glob("*.log")]
            assert time.monotonic() < until, "\n".join([f"no {what} in {within_s} s", *logs])
            time.sleep(0.1)

    def query(self, *words):
        """Run a command of Slurm on n1; returns what it prints, or None where it fails."""
        environment = {**os.environ, **self.environment}
        ended = subprocess.run(
            self.hosts[0].command(*words), capture_output=True, text=True, timeout=60, env=environment
        )
        return ended.stdout.strip() if ended.returncode == 0 else None

    def start(self, *words, **environment):
        """Start a command of Slurm on n1, as a program of the test."""
        return self._start(RUN, *words, on=self.hosts[0], **{**self.environment, **environment})

    def script(self, name, text):
        """Write a file that the nodes see too; returns its path."""
        path = self._folder / name
        path.write_text(text)
        return path

    def running(self, script):
        """Return the processes of each node whose command names a script."""
        found = [host.processes() for host in self.hosts]
        return [{pid: line for pid, line in lines.items() if str(script) in line} for lines in found]


@pytest.fixture
def cluster(tmp_path, start):
    lacking = [name for name in PROGRAMS if shutil.which(name) is None]
    if lacking:
        pytest.skip(f"Slurm's {', '.join(lacking)} are missing; hint: {INSTALL}")
    with two_hosts(tmp_path, ("n1", "n2")) as hosts:
        yield Cluster(hosts, tmp_path, start)


SUM = """
import json, os, sys
import numpy as np, sheave
mesh = sheave.init()
total = mesh.world.all_reduce(np.array([mesh.rank + 1.0]), timeout=60)
hosts = [member.host for member in mesh.members]
said = {"rank": mesh.rank, "size": mesh.size, "host": os.uname().nodename, "hosts": hosts, "total": total.tolist()}
# In one piece, for ranks share their output.
sys.stdout.write(json.dumps(said) + "\\n")
sys.stdout.flush()
mesh.barrier(timeout=60)
mesh.close()
"""


def three_sums(output):
    """Three ranks, two on n1 and one on n2, know each other and have added up the same."""
    said = sorted((json.loads(row) for row in output.splitlines()), key=lambda row: row["rank"])
    nodes = ["n1", "n1", "n2"]
    assert said == [
        {"rank": rank, "size": 3, "host": node, "hosts": nodes, "total": [6.0]} for rank, node in enumerate(nodes)
    ]


@pytest.mark.adversity(WHY)
@pytest.mark.parametrize("mpi", ["none", "pmi2"])
def test_srun_starts_ranks_on_two_nodes(cluster, mpi):
    job = cluster.script("job.py", SUM)
    three_sums(cluster.start("srun", f"--mpi={mpi}", "-N", 2, "-n", 3, sys.executable, job).succeed(timeout=60))


@pytest.mark.adversity(WHY)
@pytest.mark.parametrize("settings", [{"SHEAVE_BIND": ""}, {"SHEAVE_BIND": "", "SHEAVE_INSECURE": ""}])
def test_ranks_that_listen_on_loopback_are_refused_with_a_hint(cluster, settings):
    srun = cluster.start("srun", "-N", 2, "-n", 3, sys.executable, cluster.script("job.py", SUM), **settings)
    status, out, err = srun.finish(timeout=30)
    assert (status, out) == (1, "")
    said = [row for row in err.splitlines() if row.startswith("sheave.")]
    assert len(said) == 3 and all("hint: set SHEAVE_BIND" in row for row in said), err


@pytest.mark.adversity(WHY)
def test_sbatch_runs_a_script_that_is_no_rank_and_starts_ranks(cluster, tmp_path):
    job = cluster.script("job.py", SUM)
    alone = "import sheave; mesh = sheave.init(); print(mesh.size); mesh.close()"
    rows = ["#!/bin/sh", f"{sys.executable} -c '{alone}'", f"exec srun {sys.executable} {job}"]
    script = cluster.script("script.sh", "\n".join([*rows, ""]))
    out = tmp_path / "out"
    status, _, err = cluster.start("sbatch", "-W", "-N", 2, "-n", 3, "-o", out, script).finish(timeout=60)
    assert status == 0, err + out.read_text()
    first, rest = out.read_text().split("\n", 1)
    assert first == "1", out.read_text()
    three_sums(rest)


TORCH = """
import sys, torch, torch.distributed as dist
dist.init_process_group("sheave")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
sys.stdout.write(f"{dist.get_rank()} {dist.get_world_size()} {total.item()}\\n")
sys.stdout.flush()
dist.barrier()
dist.destroy_process_group()
"""

TORCH_SCRIPT = """#!/bin/sh
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1) MASTER_PORT=29500
exec srun sh -c 'RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID exec "$0" "$1"' {python} {job}
"""


@pytest.mark.adversity(WHY)
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed; hint: pip install torch")
def test_sbatch_runs_a_script_of_torch(cluster, tmp_path):
    """Nothing on these nodes leads elsewhere, and SHEAVE_BIND stands for all their addresses, as other jobs need it."""
    job = cluster.script("job.py", TORCH)
    script = cluster.script("script.sh", TORCH_SCRIPT.format(python=sys.executable, job=job))
    out, err = tmp_path / "out", tmp_path / "err"
    sbatch = cluster.start("sbatch", "-W", "-N", 2, "-n", 3, "-o", out, "-e", err, script)
    status, _, said = sbatch.finish(timeout=100)
    assert status == 0, said + err.read_text()
    assert sorted(out.read_text().splitlines()) == [f"{rank} 3 6.0" for rank in range(3)]


STEPS = """
import os, sys, time
import numpy as np, sheave

def say(*words):
    sys.stdout.write(" ".join(str(word).replace("\\n", "; ") for word in words) + "\\n")
    sys.stdout.flush()

mesh, steps, is_over = sheave.init(), 0, False
try:
    while not is_over:
        # The last element counts who has been told to end.
        ones = np.ones(1 << 10)
        ones[-1] = mesh.rank == 0 and os.path.exists(sys.argv[1])
        total = mesh.world.all_reduce(ones)
        assert (total[:-1] == mesh.size).all(), total
        is_over = total[-1] > 0
        steps += 1
        if steps == 10:
            say("steady", mesh.rank, os.getpid(), os.environ["SLURM_JOB_ID"])
except sheave.PeerLost as error:
    say(time.monotonic(), mesh.rank, error)
    sys.exit(1)
say("over", mesh.rank)
mesh.close()
"""


def steady(cluster, tmp_path, **environment):
    """Start three ranks that go on until a file is there. Returns srun, script, that file, job and process of each."""
    job, over = cluster.script("steps.py", STEPS), tmp_path / "over"
    srun = cluster.start("srun", "-N", 2, "-n", 3, sys.executable, job, over, **environment)
    rows = [srun.line().split() for _ in range(3)]
    assert [row[0] for row in rows] == ["steady"] * 3, rows
    processes = {int(rank): int(pid) for _, rank, pid, _ in rows}
    assert sorted(processes) == [0, 1, 2]
    return srun, job, over, rows[0][3], processes


@pytest.mark.adversity(WHY)
def test_scancel_leaves_nothing_of_a_job(cluster, tmp_path):
    srun, job, _, number, _ = steady(cluster, tmp_path)
    assert [len(lines) > 0 for lines in cluster.running(job)] == [True, True]
    cluster.query("scancel", number)
    status, _, err = srun.finish(timeout=60)
    assert status != 0 and "CANCELLED" in err, err
    cluster.wait_until_idle()
    assert cluster.running(job) == [{}, {}]
    # The nodes are as good as new.
    three_sums(cluster.start("srun", "-N", 2, "-n", 3, sys.executable, cluster.script("job.py", SUM)).succeed(60))


@pytest.mark.adversity(WHY)
@pytest.mark.parametrize("victim", [0, 2])
def test_a_task_that_is_killed_is_named_by_the_others(cluster, tmp_path, victim):
    srun, job, _, _, processes = steady(cluster, tmp_path, SHEAVE_LIVENESS_TIMEOUT_MS="60000")
    begun = time.monotonic()
    cluster.hosts[victim == 2].kill(processes[victim])
    for _ in range(2):
        ended, rank, text = srun.line().split(" ", 2)
        print(f"{float(ended) - begun:.3f} s: rank {rank}: {text}")
        assert f"peer rank-{victim} (" in text
        assert float(ended) - begun < DEATH_BOUND_S
    status, _, err = srun.finish(timeout=60)
    assert status != 0 and f"task {victim}: Killed" in err, err
    cluster.wait_until_idle()
    assert cluster.running(job) == [{}, {}]


@pytest.mark.adversity(WHY)
def test_a_job_outlives_the_daemon_of_its_node(cluster, tmp_path):
    srun, _, over, _, _ = steady(cluster, tmp_path)
    (daemon,) = [pid for pid, line in cluster.hosts[1].processes().items() if line == "slurmd -D"]
    cluster.hosts[1].kill(daemon)
    cluster.wait_for(lambda: daemon not in cluster.hosts[1].processes(), "end of the daemon")
    over.touch()
    rows = [srun.line() for _ in range(3)]
    assert sorted(rows) == [f"over {rank}" for rank in range(3)]


@pytest.mark.adversity(WHY)
def test_a_node_that_is_gone_without_a_word_is_named_by_the_ranks_of_others(cluster, tmp_path):
    srun, *_ = steady(cluster, tmp_path, **LIVENESS)
    begun = time.monotonic()
    cluster.hosts[1].set_wire("down")
    cluster.hosts[1].close()
    # Slurm itself takes minutes to give up a node, so srun lasts as long as the hosts.
    for _ in range(2):
        ended, rank, text = srun.line().split(" ", 2)
        print(f"{float(ended) - begun:.3f} s: rank {rank}: {text}")
        assert rank in "01" and "peer rank-2 (" in text
        assert float(ended) - begun < SILENCE_BOUND_S
