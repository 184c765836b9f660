"""What is known of each launcher: one entry of data, and nothing about launchers anywhere else.

Who reads it: collect/nodes.py (which part of the job this is), cli/program.py (whether ranks are watched),
collect/rank/leaving.py (whether a rank may be started anew), and native/hook/identity.cpp by way of identity.inc, which
`make vocabulary` writes (who a process is). To add a launcher, add an entry, and test it.

Nothing is guessed: a launcher whose default depends on files that we do not read has none here. Stdlib only: ranks read
this too.
"""

from __future__ import annotations

from msmemscope.options.facts import Facts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class Identity(Facts):
    """The variables that a launcher sets for its ranks.

    A process is a rank when `rank` and one of the sizes are both there and agree (rank < size). Ask what else sets
    them: a variable that a plain program may meet too is no evidence.
    """

    rank: str
    sizes: tuple[str, ...]  # of the job, in ranks: the first that is there; two at most
    local_rank: str = ""
    local_size: str = ""  # ranks on this node
    node: str = ""  # this node's number
    restarts: str = ""  # how often the job was started anew
    most_restarts: str = ""
    # With a smaller size it says nothing, and is not missed when it is incomplete.
    fewest: int = 1
    # NAME=VALUE that says that this process is no rank, whatever else stands there.
    but: str = ""


class Apart(Facts):
    """A command of a launcher, its first words, that ends or goes elsewhere before anything is there to watch."""

    words: tuple[str, ...]
    advice: str
    unless: tuple[str, ...] = ()  # options with which it is not so


class Launcher(Facts):
    """One launcher. Options are given in all their spellings, the first of which is shown to the user."""

    name: str
    # To recognise it: names of programs, and of modules behind `python -m`.
    programs: tuple[str, ...]
    identity: Identity | None = None
    # How many nodes the job has: an option, the variable that stands in for it, and its value without both.
    nodes: tuple[str, ...] = ()
    nodes_variable: str = ""
    nodes_default: str = ""
    # Or: ranks of the job, ranks of a node, and the value of both when they are not given.
    workers: tuple[str, ...] = ()
    workers_default: str = ""
    # Variables that tell the processes it starts how many nodes there are.
    told_nodes: tuple[str, ...] = ()
    # Which of the nodes this is: an option, and the variable that stands in for it.
    node_rank: tuple[str, ...] = ()
    node_rank_variable: str = ""
    # Where the nodes of a job meet: the same text on each.
    rendezvous: tuple[str, ...] = ()
    rendezvous_variable: str = ""
    # Ranks are watched because they inherit the environment. Options that keep it from them, each with the word that
    # its value must have to let it pass; "": nothing does.
    withholds: Mapping[str, str] = {}
    # Its subcommands that start nothing which inherits: what they do not watch, and what to write instead. Where an
    # option stands behind `unless`, they do.
    apart: tuple[Apart, ...] = ()


# Also of whatever else serves torch's env://.
_TORCH = Identity(
    rank="RANK",
    sizes=("WORLD_SIZE",),
    local_rank="LOCAL_RANK",
    local_size="LOCAL_WORLD_SIZE",
    node="GROUP_RANK",
    restarts="TORCHELASTIC_RESTART_COUNT",
    most_restarts="TORCHELASTIC_MAX_RESTARTS",
)

LAUNCHERS = (
    Launcher(
        name="torchrun",
        programs=("torchrun", "torch.distributed.run", "torch.distributed.launch"),
        identity=_TORCH,
        nodes=("--nnodes",),
        nodes_variable="PET_NNODES",
        nodes_default="1",
        node_rank=("--node-rank", "--node_rank"),
        node_rank_variable="PET_NODE_RANK",
        rendezvous=("--rdzv-endpoint", "--rdzv_endpoint", "--master-addr", "--master_addr"),
        rendezvous_variable="PET_RDZV_ENDPOINT",
    ),
    Launcher(
        name="accelerate",
        programs=("accelerate", "accelerate.commands.launch"),
        identity=_TORCH,
        nodes=("--num_machines", "--num-machines"),
        node_rank=("--machine_rank", "--machine-rank"),
        rendezvous=("--main_process_ip", "--main-process-ip"),
    ),
    Launcher(
        name="deepspeed",
        programs=("deepspeed", "deepspeed.launcher.runner"),
        identity=_TORCH,
        nodes=("--num_nodes",),
        node_rank=("--node_rank",),
        rendezvous=("--master_addr",),
    ),
    Launcher(  # Open MPI
        name="mpirun",
        programs=("mpirun",),
        identity=Identity(
            rank="OMPI_COMM_WORLD_RANK",
            sizes=("OMPI_COMM_WORLD_SIZE",),
            local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
            local_size="OMPI_COMM_WORLD_LOCAL_SIZE",
        ),
    ),
    Launcher(  # MPICH and Intel MPI
        name="mpiexec",
        programs=("mpiexec", "mpiexec.hydra"),
        identity=Identity(rank="PMI_RANK", sizes=("PMI_SIZE",), local_rank="MPI_LOCALRANKID"),
        withholds={"-genvnone": "", "-envnone": ""},
    ),
    Launcher(  # of MindSpore, and its scripts with a rank table
        name="msrun",
        programs=("msrun", "mindspore.parallel.cluster.run"),
        # msrun starts the user's script once more as its scheduler, with the variables of rank 0.
        identity=Identity(rank="RANK_ID", sizes=("MS_WORKER_NUM", "RANK_SIZE"), but="MS_ROLE=MS_SCHED"),
        workers=("--worker_num", "--local_worker_num"),
        workers_default="8",
        node_rank=("--node_rank",),
        rendezvous=("--master_addr",),
    ),
    Launcher(
        name="srun",
        programs=("srun",),
        # The size of the step, for SLURM_NTASKS is the allocation's. SLURM_PROCID=0 stands also in batch scripts and
        # for a step of one task, neither of which is a job of ranks.
        identity=Identity(
            rank="SLURM_PROCID",
            sizes=("SLURM_STEP_NUM_TASKS",),
            local_rank="SLURM_LOCALID",
            node="SLURM_NODEID",
            fewest=2,
        ),
        nodes=("--nodes", "-N"),
        told_nodes=("SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
        withholds={"--export": "ALL"},
    ),
    Launcher(
        name="ray",
        programs=("ray",),
        apart=(
            Apart(
                words=("job", "submit"),
                advice="ray job submit hands the program to the cluster, which starts it unwatched: "
                "write ray job submit -- msmemscope -o DIRECTORY program",
            ),
            Apart(
                words=("start",),
                advice="ray start leaves its node behind and ends, and the recording with it: add --block",
                unless=("--block",),
            ),
        ),
    ),
)


def identities() -> tuple[Identity, ...]:
    """Each once. The first whose variables hold counts, so a launcher that starts others comes behind them."""
    return tuple(dict.fromkeys(one.identity for one in LAUNCHERS if one.identity is not None))
