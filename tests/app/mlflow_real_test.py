#!/usr/bin/env python3
"""A run in MLflow's own tracking server, read with MLflow's own client: metrics, parameters, tags and artifacts equal the metrics file.

Skipped (77) without the package mlflow. CLEAVE_MLFLOW_PYTHON names a Python that has it.
"""
import importlib.util
import json
import math
import os
import pathlib
import socket
import subprocess
import sys
import time
import unittest
import urllib.request

if (other := os.environ.pop("CLEAVE_MLFLOW_PYTHON", "")) and other != sys.executable:
    os.execv(other, [other, *sys.argv])
if importlib.util.find_spec("mlflow") is None:
    sys.exit(77)
os.environ |= {"MLFLOW_ALLOW_FILE_STORE": "true", "NO_PROXY": "127.0.0.1", "GIT_PYTHON_REFRESH": "quiet"}
for variable in [name for name in os.environ if name.startswith(("MLFLOW_TRACKING", "MLFLOW_RUN", "MLFLOW_EXPERIMENT"))]:
    del os.environ[variable]

import mlflow  # noqa: E402
from app_test import CONFIG  # noqa: E402
from run_test import RunTest  # noqa: E402

STEPS = 20
NAMES = ("loss", "lr", "grad_norm", "loss_scale", "epoch", "tokens", "tokens_per_s", "step_ms", "mfu", "skipped_total")


def written(curve):
    """Returns a curve with the digits of the metrics file."""
    return {step: float(f"{value:.9g}") for step, value in curve.items()}


class RealMlflow(RunTest):
    def trained(self, uri, **more):
        """Trains and returns the metrics file."""
        mlflow_section = {"enabled": True, "tracking_uri": uri, "experiment_name": "tests of cleave", "run_name": "a run", **more}
        config = self.config(cleave={"mlflow": mlflow_section}, wall_clock_breakdown=True)
        metrics = self.dir / "m.jsonl"
        r = self.train("--metrics", metrics, "--eval_data", self.text, "--eval_interval", 10, config=config, steps=STEPS)
        self.assertEqual([line for line in r.stderr.splitlines() if line.startswith("warning:")], [])
        return [json.loads(line) for line in metrics.read_text().splitlines()]

    def require_equal(self, client, lines):
        """The newest run of the experiment has the values of the metrics file."""
        experiment = client.get_experiment_by_name("tests of cleave")
        run = client.search_runs([experiment.experiment_id])[0]
        self.assertEqual((run.info.status, run.info.run_name), ("FINISHED", "a run"))
        history = {name: {m.step: m.value for m in client.get_metric_history(run.info.run_id, name)} for name in run.data.metrics}
        steps = [line for line in lines if "event" not in line]
        self.assertEqual(len(steps), STEPS)
        for name in NAMES:
            self.assertEqual(written(history[name]), {line["step"]: line[name] for line in steps}, name)
        for name in steps[0]["times_ms"]:
            self.assertEqual(written(history[f"times_ms/{name}"]), {line["step"]: line["times_ms"][name] for line in steps}, name)
        evaluations = {line["step"]: line for line in lines if line.get("event") == "evaluation"}
        self.assertEqual(sorted(evaluations), [10, 20])
        for name in ("validation_loss", "perplexity", "accuracy"):
            for step, line in evaluations.items():
                self.assertTrue(math.isclose(history[name][step], line[name], rel_tol=1e-8), name)
        start = lines[0]
        for key, value in start["config"].items():
            self.assertEqual(run.data.params[key], value if isinstance(value, str) else json.dumps(value, separators=(",", ":")), key)
        self.assertEqual(int(run.data.params["parameters"]), start["parameters"])
        self.assertEqual(run.data.tags["mlflow.source.name"], "cleave train")
        self.assertEqual(run.info.user_id, run.data.tags["mlflow.user"])
        for name, wanted in (("plan.json", start["memory_planned"]), ("ds_config.json", None)):
            text = pathlib.Path(client.download_artifacts(run.info.run_id, name, self.dir)).read_text()
            if wanted:
                self.assertEqual(json.loads(text), wanted)
            else:
                self.assertEqual(json.loads(text)["optimizer"], CONFIG["optimizer"])
        return run

    def test_a_run_of_a_server_equals_the_metrics_file(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{self.dir}/runs.db",
                   "--artifacts-destination", str(self.dir / "artifacts"), "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
        url = f"http://127.0.0.1:{port}"
        log = self.dir / "server.log"
        with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out, cwd=self.dir, start_new_session=True) as server:
            try:
                self.wait_for(lambda: self.answers(url, server, log))
                lines = self.trained(url)
                run = self.require_equal(mlflow.MlflowClient(url), lines)
                self.assertTrue(run.info.artifact_uri.startswith("mlflow-artifacts:"), run.info.artifact_uri)
            finally:
                os.killpg(server.pid, 15)
                server.wait()

    def answers(self, url, server, log):
        self.assertIsNone(server.poll(), log.read_text())
        try:
            time.sleep(0.2)
            return urllib.request.urlopen(url + "/health", timeout=5).status == 200
        except OSError:
            return False

    def test_a_run_in_a_folder_equals_the_metrics_file(self):
        lines = self.trained(str(self.dir / "mlruns"))
        self.require_equal(mlflow.MlflowClient(str(self.dir / "mlruns")), lines)


if __name__ == "__main__":
    print(f"mlflow {mlflow.__version__}, Python {sys.version.split()[0]}")
    unittest.main(argv=["mlflow_real_test"])
