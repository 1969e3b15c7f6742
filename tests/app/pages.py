"""Reads the documents of the tree: their pages, and the commands in them."""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
MADE = {"build", "gpu_bundle", "install", "runs"}  # folders that .gitignore names
FOUND = [ROOT / "README.md", *sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("[!.]*/**/*.md"))]  # README.md first: others use its training
PAGES = [page for page in dict.fromkeys(FOUND) if page.name != "CHANGELOG.md" and page.relative_to(ROOT).parts[0] not in MADE
         and page.parent != ROOT / "benchmarks/results"]

PROGRAMS = "cleave|deepspeed|cmake|ctest|git|pip|python|torchrun|mpirun|srun|sbatch|ssh|export"
PATHS = r"(?:\./|\.venv/)?(?:bin|scripts|tests|examples|benchmarks|build)/[\w./]+"
INLINE = re.compile(rf"(?<!`)`((?:[A-Z_]+=\S+ )*(?:{PROGRAMS}|{PATHS})\s[^`]+)`(?!`)")

# Replacements of other launchers, which start the ranks with their documented variables.
LAUNCHERS = {
    "torchrun": ("--no-python --nproc_per_node 2", {"RANK": "{r}", "WORLD_SIZE": "2", "LOCAL_RANK": "{r}", "LOCAL_WORLD_SIZE": "2",
                                                    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "{port}",
                                                    "TORCHELASTIC_RUN_ID": "none"}),
    "mpirun": ("-n 2", {"OMPI_COMM_WORLD_RANK": "{r}", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "{r}",
                        "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "{port}"}),
    "srun": ("-n 2", {"SLURM_PROCID": "{r}", "SLURM_NTASKS": "2", "SLURM_LOCALID": "{r}", "SLURM_STEP_NUM_TASKS": "2",
                      "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_JOB_ID": "{port}", "SLURM_STEP_NODELIST": "localhost",
                      "SLURM_NNODES": "1", "SLURM_STEP_NUM_NODES": "1", "SLURM_NODEID": "0", "MASTER_ADDR": "127.0.0.1",
                      "MASTER_PORT": "{port}"}),
}


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def commands(block):
    """Returns the commands of a block; continued lines and loops are one command."""
    text = block.replace("\\\n", " ")
    text = re.sub(r"[ \t]+#.*", "", text)
    loops = re.split(r"(^for .*?^done$)", text, flags=re.MULTILINE | re.DOTALL)
    for part in loops:
        if part.startswith("for "):
            yield part
        else:
            yield from (line.strip() for line in part.splitlines() if line.strip())


def inline_commands(page):
    """Returns the commands with arguments in the text and tables of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [" ".join(command.split()) for command in INLINE.findall(text)]
