"""The files of launch/ for Kubernetes, SkyPilot, SLURM and Docker: values survive unchanged, and the real parsers
accept the result if they are installed (``pip install -e .[launch]``)."""

import importlib
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest
import yaml

from tests.launch import programs

HOSTILE = [
    "a;touch x",
    "$(id)",
    "../x",
    "`id`",
    "$(HOSTNAME)",
    "a: b\n- c",
    "'",
    '"',
    "${IMAGE}",
    "cost$$",
    "$",
    "--flag=1 2",
]
VALUES = {
    "k8s/job.yaml": "NAME=base IMAGE=registry/j:1 NODES=4 GPUS=8 CPUS=96 MEMORY=900 CLAIM=runs",
    "k8s/jobset.yaml": "NAME=base IMAGE=registry/j:1 SLICES=2 HOSTS=4 CHIPS=4 CPUS=100 MEMORY=180 TOPOLOGY=4x4 "
    "ACCELERATOR=tpu-v5-lite-podslice CLAIM=runs",
    "sky/train.yaml": "NAME=base ACCELERATORS=H100:8 CPUS=64 MEMORY=500 IMAGE=registry/j:1 BUCKET=gs://my-runs",
}
WATCHDOG = "--train.stall-minutes=60"


def render(template, *arguments, **changed):
    values = dict(item.split("=", 1) for item in VALUES[template].split()) | changed
    words = [f"{key}={value}" for key, value in values.items() if value is not None]
    command = [sys.executable, programs.LAUNCH / "render.py", programs.LAUNCH / template, *words, "--", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout if done.returncode == 0 else done.stderr


def documents(template, *arguments, **changed):
    code, text = render(template, *arguments, **changed)
    assert code == 0, text
    return {part.get("kind"): part for part in yaml.safe_load_all(text)}


def container(document):
    spec = document["spec"]
    spec = spec["replicatedJobs"][0]["template"]["spec"] if "replicatedJobs" in spec else spec
    return spec["template"]["spec"]["containers"][0]


def in_kubernetes(argument):
    """Returns an argument as a container gets it: $$ becomes $, and $(NAME) the value of a variable."""
    return re.sub(r"\$\$|\$\([^)]*\)", lambda result: "$" if result[0] == "$$" else "a value", argument)


@pytest.mark.parametrize(("template", "kind"), [("k8s/job.yaml", "Job"), ("k8s/jobset.yaml", "JobSet")])
def test_arguments_reach_a_container_unchanged(template, kind):
    got = container(documents(template, "base", *HOSTILE)[kind])["args"]
    assert [in_kubernetes(argument) for argument in got] == ["train", WATCHDOG, "base", *HOSTILE]


def test_a_pod_with_tpus_may_lock_memory_and_open_devices():
    """GKE lets only root do so; the limit is raised before the arguments run, which the shell does not read."""
    document = documents("k8s/jobset.yaml", "base", *HOSTILE)["JobSet"]
    train, pod = container(document), document["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert pod["securityContext"] == {"runAsUser": 0}
    assert train["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"add": ["SYS_RESOURCE"]}}
    shell, option, script, *words = train["command"] + [in_kubernetes(argument) for argument in train["args"]]
    stubs = "ulimit() { printf '%s\\0' ulimit \"$@\"; }; jaxformer() { printf '%s\\0' \"$@\"; }; "
    for outcome, expected in (("", ["train", WATCHDOG, "base", *HOSTILE]), ("return 1; ", None)):
        line = stubs.replace("ulimit() { ", f"ulimit() {{ {outcome}") + script.replace("exec ", "")
        done = subprocess.run([shell, option, line, *words], capture_output=True, text=True, timeout=60)
        printed = done.stdout.split("\0")[:-1]
        assert (printed, done.returncode) == ((["ulimit", "-l", "unlimited", *expected], 0) if expected else ([], 1))


def test_the_ports_are_those_of_jax():
    from jax._src.clusters.cloud_tpu_cluster import coordinator_port

    ports = [port["containerPort"] for port in container(documents("k8s/jobset.yaml", "base")["JobSet"])["ports"]]
    assert int(coordinator_port) in ports


@pytest.mark.parametrize(
    ("template", "kind", "variable", "platforms"),
    [
        ("k8s/job.yaml", "Job", "XLA_FLAGS", "cuda"),
        ("k8s/jobset.yaml", "JobSet", "LIBTPU_INIT_ARGS", "tpu,cpu"),
        ("sky/train.yaml", None, "XLA_FLAGS", "cuda"),
    ],
)
def test_flags_caches_and_requests(template, kind, variable, platforms):
    """Flags may be left out; programs and tokens are kept where all hosts and the next start find them."""
    for flags in (None, "--xla_a=1 --xla_b='x y' --xla_c=$(JAX_PLATFORMS)$$"):
        document = documents(template, "base", FLAGS=flags)[kind]
        if kind is None:
            variables = document["envs"]
            assert (document["resources"]["cpus"], document["resources"]["memory"]) == ("64+", "500+")
        else:
            variables = {variable["name"]: variable.get("value") for variable in container(document)["env"]}
            values = dict(item.split("=", 1) for item in VALUES[template].split())
            requests = {"cpu": int(values["CPUS"]), "memory": f"{values['MEMORY']}Gi"}
            assert container(document)["resources"]["requests"] == requests
        got = variables[variable]
        assert (in_kubernetes(got) if kind else got) == (flags or "")
        assert variables["JAXFORMER_CACHE"] == "/runs/.cache"
        assert variables["JAX_PLATFORMS"] == platforms


def with_rdma(folder):
    """Returns the job for hosts with RDMA, made by the command that its first lines give."""
    text = (programs.LAUNCH / "k8s" / "job.yaml").read_text(encoding="utf-8")
    command = re.search(r"(sed .*) launch/k8s/job.yaml > job.yaml", text)[1]
    done = subprocess.run(["sh", "-c", command], input=text, capture_output=True, text=True, timeout=60)
    (folder / "job.yaml").write_text(done.stdout)
    words = [sys.executable, programs.LAUNCH / "render.py", folder / "job.yaml", *VALUES["k8s/job.yaml"].split()]
    done = subprocess.run([*words, "--", "base"], capture_output=True, text=True, timeout=60)
    return {part["kind"]: part for part in yaml.safe_load_all(done.stdout)}


def test_rdma_is_an_option(tmp_path):
    plain, rdma = container(documents("k8s/job.yaml", "base")["Job"]), container(with_rdma(tmp_path)["Job"])
    assert "securityContext" not in plain
    assert rdma["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}
    assert rdma["resources"]["limits"] == {"nvidia.com/gpu": 8, "rdma/hca": 1}
    names = lambda one: {variable["name"] for variable in one["env"]}
    assert names(rdma) - names(plain) == {"NCCL_IB_HCA", "NCCL_SOCKET_IFNAME"}


def test_arguments_reach_a_shell_unchanged():
    script = documents("sky/train.yaml", "base", *HOSTILE)[None]["run"]
    # Instead of jaxformer, a command that prints its arguments with a NUL after each.
    script = script.replace("cd /jaxformer", "").replace("exec jaxformer", "printf '%s\\0'")
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.split("\0")[:-1] == ["train", WATCHDOG, "base", *HOSTILE]


def test_skypilot_retries_on_one_machine():
    """One machine, because a cached bucket is not shared storage; wrong settings are not retried."""
    task = documents("sky/train.yaml", "base")[None]
    assert task["num_nodes"] == 1
    again = {"max_restarts_on_errors": 0, "recover_on_exit_codes": [1, 70, 85, 134, 137, 143]}
    assert task["resources"]["job_recovery"] == again
    dockerfile = (programs.LAUNCH / "Dockerfile").read_text(encoding="utf-8")
    assert f"\nWORKDIR {task['run'].split()[1]}\n" in dockerfile  # the folder of the experiments


def batch_script(folder, code, *arguments, **variables):
    """Runs the job's script with tasks that end with a code, and returns the arguments of srun and scontrol."""
    for name, body in {
        "srun": f'printf "%s\\0" "$@" "$SRUN_CPUS_PER_TASK"; exit {code}',
        "scontrol": 'echo "$@" > called',
    }.items():
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "12", **variables}
    command = ["bash", programs.LAUNCH / "slurm" / "train.sbatch", *arguments]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    called = folder / "called"
    return done.stdout.split("\0")[:-1], called.read_text() if called.exists() else ""


def test_arguments_reach_srun_unchanged(tmp_path):
    options = ["--export=ALL", "--label", "--kill-on-bad-exit=0", "--wait=30"]
    expected = [*options, "jaxformer", "train", WATCHDOG, "base", *HOSTILE]
    assert batch_script(tmp_path, 85, "base", *HOSTILE)[0] == [*expected, ""]
    # srun takes the cores of a task from this variable, not from the options of sbatch.
    assert batch_script(tmp_path, 85, "base", *HOSTILE, SLURM_CPUS_PER_TASK="7")[0] == [*expected, "7"]


@pytest.mark.parametrize(
    ("code", "restarts", "again"),
    [
        *[(code, "", False) for code in (0, 2, 130)],
        *[(code, "19", True) for code in (1, 70, 85, 134, 137, 143)],
        *[(code, "20", False) for code in (137, 143)],
        (85, "20", True),
    ],
)
def test_slurm_requeues_the_job(tmp_path, code, restarts, again):
    called = batch_script(tmp_path, code, "base", SLURM_RESTART_COUNT=restarts)[1]
    assert called == ("requeue 12\n" if again else "")


@pytest.mark.parametrize(
    "bad", ["a;touch x", "$(id)", "../x", "A", "", "-a", "a_b", "a" * 41, "a\nb", "a: b", "1a", "a-"]
)
@pytest.mark.parametrize("key", ["NAME", "CLAIM"])
def test_names_are_dns_labels(key, bad):
    from launch.names import name

    with pytest.raises(Exception, match=r"a name must be at most 40 .*, begin with a letter and not end with a hyphen"):
        name(bad)
    if bad == "../x":  # once through the command line
        code, errors = render("k8s/job.yaml", "base", **{key: bad})
        assert (code, "a name must be" in errors) == (2, True)


def test_values_cannot_become_yaml():
    job = documents("k8s/job.yaml", "base", IMAGE="x}\n---\nkind: Secret\n#")["Job"]
    assert container(job)["image"] == "x}\n---\nkind: Secret\n#"
    assert job["spec"]["parallelism"] == 4
    variables = {variable["name"]: variable.get("value") for variable in container(job)["env"]}
    assert variables["JAX_NUM_PROCESSES"] == "4"
    assert variables["JAX_COORDINATOR_ADDRESS"] == "base-0.base:8476"


# What kubectl reads as a number or a truth value where there are no quotes.
NO_TEXT = re.compile(r"[-+]?\.?[0-9][0-9.]*([eE][-+]?[0-9]+)?|0[box][0-9a-fA-F]+|[yYnN]")


@pytest.mark.parametrize("template", VALUES)
def test_kubectl_reads_every_text_as_a_text(template):
    """A learning rate of 1e-4 became a number, which a container does not accept; PyYAML reads it as a text."""
    words = ["--optimizer.learning-rate", "1e-4", "1E+3", "1e5", "-2e-6", ".5", "0o17", "8", "y", "N", "true", "1_000"]
    code, text = render(template, "base", *words, NAME="y")
    assert code == 0, text
    texts = [x for x in yaml.parse(text) if isinstance(x, yaml.ScalarEvent)]
    unquoted = [x.value for x in texts if x.style is None and isinstance(yaml.safe_load(x.value), str)]
    assert [x for x in unquoted if NO_TEXT.fullmatch(x)] == []


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"GPUS": "8; id"}, "GPUS must be a whole number"),
        ({"GPUS": "0"}, "GPUS must be a whole number"),
        ({"MEMORY": "900Gi"}, "MEMORY must be a whole number"),
        ({"GPUS": None}, "needs CLAIM, CPUS, FLAGS, GPUS"),
        ({"GPU": "8"}, "got CLAIM, CPUS, FLAGS, GPU, GPUS"),
        ({"IMAGE": ""}, "IMAGE is empty"),
    ],
)
def test_wrong_values_are_refused(changed, message):
    code, errors = render("k8s/job.yaml", "base", **changed)
    assert (code, message in errors) == (2, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["k8s/none.yaml", "NAME=base"], "No such file or directory"),
        (["k8s/job.yaml", "NAME=base", "NAME=other"], "NAME is set twice"),
        (["k8s/job.yaml", *VALUES["k8s/job.yaml"].split(), "--", b"\xff"], "can't encode character"),
    ],
)
def test_wrong_arguments(words, message):
    command = [sys.executable, programs.LAUNCH / "render.py", programs.LAUNCH / words[0], *words[1:]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, message in done.stderr, "Traceback" in done.stderr) == (2, True, False)


def test_pods_of_a_job_find_process_0():
    result = documents("k8s/job.yaml", "base")
    job, service = result["Job"], result["Service"]
    pod = job["spec"]["template"]["spec"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert pod["subdomain"] == service["metadata"]["name"]
    assert job["spec"]["completionMode"] == "Indexed"
    assert job["spec"]["completions"] == job["spec"]["parallelism"]
    # A limit shared by all pods would be used up NODES times as fast.
    assert "backoffLimit" not in job["spec"]
    assert (job["spec"]["backoffLimitPerIndex"], job["spec"]["maxFailedIndexes"]) == (64, 0)


@pytest.mark.parametrize(("template", "kind"), [("k8s/job.yaml", "Job"), ("k8s/jobset.yaml", "JobSet")])
def test_exit_codes_and_rights(template, kind):
    result = documents(template, "base")
    spec = result[kind]["spec"]
    job = spec["replicatedJobs"][0]["template"]["spec"] if kind == "JobSet" else spec
    rules = [(r["action"], r.get("onExitCodes", {}).get("values")) for r in job["podFailurePolicy"]["rules"]]
    assert ("FailJob", [2, 130]) in rules
    assert kind == "JobSet" or ("Ignore", [85]) in rules
    pod = job["template"]["spec"]
    assert not pod["automountServiceAccountToken"]
    assert not result["ServiceAccount"]["automountServiceAccountToken"]
    assert kind == "JobSet" or pod["securityContext"]["runAsNonRoot"]
    # Otherwise a start would make the cache's folders writable for the group, and they would not be used.
    assert kind == "JobSet" or pod["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"
    assert pod["restartPolicy"] == "Never"


def module(name):
    return pytest.importorskip(name, reason=f"{name} is not installed: pip install -e .[launch]")


@pytest.mark.faults
def test_kubernetes_accepts_the_templates(tmp_path):
    validate = module("kubernetes_validate")
    job = documents("k8s/job.yaml", "base", "--seed", "1")
    jobset = documents("k8s/jobset.yaml", "base")
    spec = jobset["JobSet"]["spec"]["replicatedJobs"][0]["template"]["spec"]
    embedded = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "slice"}, "spec": spec}
    for document in [*job.values(), with_rdma(tmp_path)["Job"], jobset["ServiceAccount"], embedded]:
        validate.validate(document, "1.31", strict=True)
    embedded["spec"]["paralelism"] = 4
    with pytest.raises(validate.ValidationError, match="paralelism"):
        validate.validate(embedded, "1.31", strict=True)


def dropped(source, kept, path=""):
    """Returns the paths of the values that a model dropped."""
    if isinstance(source, dict):
        return [x for key in source for x in dropped(source[key], (kept or {}).get(key), f"{path}.{key}")]
    if isinstance(source, list):
        return [x for i, item in enumerate(source) for x in dropped(item, (kept or [])[i], f"{path}[{i}]")]
    return [] if source == kept else [path]


@pytest.mark.faults
def test_jobset_accepts_the_template():
    """The models generated from JobSet's own definition drop every field that they do not know."""
    module("kubeflow_trainer_api")
    models = importlib.import_module("kubeflow_trainer_api.models.jobset_v1alpha2_job_set")
    document = documents("k8s/jobset.yaml", "base", "--seed", "1")["JobSet"]
    assert dropped(document, models.JobsetV1alpha2JobSet.from_dict(document).to_dict()) == []
    document["spec"]["failurePolicy"]["maxRestart"] = 1
    document["spec"]["replicatedJobs"][0]["replica"] = 2
    result = dropped(document, models.JobsetV1alpha2JobSet.from_dict(document).to_dict())
    assert result == [".spec.failurePolicy.maxRestart", ".spec.replicatedJobs[0].replica"]


PARSE = "import sky, sys; task = sky.Task.from_yaml(sys.argv[1]); print(task.num_nodes, task.resources, task.run); \
[print(resource.job_recovery) for resource in task.resources]"


@pytest.mark.faults
def test_skypilot_accepts_the_template(tmp_path):
    python = programs.python_with("sky")
    file = tmp_path / "train.yaml"
    for old, new, expected in [("use_spot", "use_spot", 0), ("use_spot", "use_spott", 1)]:
        file.write_text(render("sky/train.yaml", "base", *HOSTILE)[1].replace(old, new))
        env = {**os.environ, "HOME": str(tmp_path)}
        done = subprocess.run([python, "-c", PARSE, file], env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == expected, done.stderr
        if expected == 0:
            assert done.stdout.startswith("1 ")
            assert "'H100': 8" in done.stdout
            assert shlex.join(HOSTILE) in done.stdout
            assert "'recover_on_exit_codes': [1, 70, 85, 134, 137, 143]" in done.stdout
        else:
            assert "use_spot" in done.stderr


@pytest.mark.faults
def test_shell_scripts_pass_shellcheck():
    shellcheck = shutil.which("shellcheck", path=f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}")
    if not shellcheck:
        pytest.skip("shellcheck is not installed: pip install -e .[launch]")
    scripts = [programs.LAUNCH / "slurm" / "train.sbatch", programs.LAUNCH / "find_python.sh"]
    done = subprocess.run([shellcheck, *scripts], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


@pytest.mark.faults
def test_buildkit_parses_the_dockerfile():
    """Only the parser of BuildKit runs; nothing is built."""
    commands = module("dockerfile").parse_file(str(programs.LAUNCH / "Dockerfile"))
    assert [command.cmd.upper() for command in commands][:2] == ["FROM", "ARG"]
    assert ("PLATFORM=cpu",) in [command.value for command in commands]
    run, user = [command.value[0] for command in commands if command.cmd.upper() == "RUN"]
    for platform, expected in {"cpu": "[train]", "cuda": "[train,cuda]", "tpu": "[train,tpu]", "gpu": None}.items():
        done = subprocess.run(
            ["sh", "-c", f'pip() {{ echo "$@"; }}; {run}'], env={"PLATFORM": platform}, capture_output=True, text=True
        )
        assert (expected in done.stdout) if expected else done.returncode == 2
    script = f'useradd() {{ :; }}; chown() {{ echo "$@"; }}; {user}'
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True)
    assert done.stdout == "researcher .\n"  # the user can create .cache in the working directory


def test_pods_that_tokenize_do_a_part_each(tmp_path):
    """Their shell gets every argument unchanged, and counts parts from 1."""
    values = "NAME=tokens IMAGE=registry/j:1 NODES=4 CPUS=16 MEMORY=16 CLAIM=runs".split()
    words = [
        sys.executable,
        programs.LAUNCH / "render.py",
        programs.LAUNCH / "k8s/prepare.yaml",
        *values,
        "--",
        *HOSTILE,
    ]
    text = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout
    job = {part["kind"]: part for part in yaml.safe_load_all(text)}["Job"]
    assert (job["spec"]["completions"], job["spec"]["completionMode"]) == (4, "Indexed")
    command = [word.replace("$$", "$") for word in container(job)["command"]]  # as Kubernetes reads it
    stub = tmp_path / "jaxformer"
    stub.write_text(f"#!{sys.executable}\nimport sys\nprint(sys.argv[1:])\n")
    stub.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "JOB_COMPLETION_INDEX": "2"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == f"{['data', 'prepare', *HOSTILE, '--part', '3/4']}\n"


def test_tasks_of_an_array_do_a_part_each(tmp_path):
    """Their numbers may begin anywhere; a task that fails returns to the queue, unless it would end the same way."""
    for name in ("srun", "scontrol"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} "$@"\nexit ${{CODE:-0}}\n')
        (tmp_path / name).chmod(0o755)
    variables = {"SLURM_ARRAY_TASK_ID": "7", "SLURM_ARRAY_TASK_MIN": "5", "SLURM_ARRAY_TASK_COUNT": "4"}
    variables |= {"SLURM_ARRAY_JOB_ID": "31", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for code, again in ((0, False), (2, False), (1, True), (137, True)):
        command = ["bash", programs.LAUNCH / "slurm" / "prepare.sbatch", "demo", "--out", "a b"]
        environment = {**os.environ, **variables, "CODE": str(code)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == code
        said = done.stdout.splitlines()
        assert said[0] == "srun --export=ALL jaxformer data prepare demo --out a b --part 3/4"
        assert said[1:] == ["scontrol requeue 31_7"] * again
