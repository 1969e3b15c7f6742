#!/usr/bin/env python3
"""Metrics in an MLflow run: a stand-in server receives them, and no fault of it stops or delays a training."""
import json
import os
import pathlib
import shutil
import subprocess
import time
import unittest

from mlflow_stand_in import StandIn
from run_test import RunTest

SECRET = "tok-0123456789abcdef"
NAMES = ("loss", "lr", "grad_norm", "loss_scale", "epoch", "tokens_per_s", "step_ms", "mfu")


class Mlflow(RunTest):
    def setUp(self):
        super().setUp()
        self.metrics = self.dir / "m.jsonl"
        os.environ["NO_PROXY"] = "127.0.0.1"
        for name in [name for name in os.environ if name.startswith(("MLFLOW_", "AZUREML_"))]:
            del os.environ[name]

    def run_to(self, uri, *args, steps=5, code=0, **more):
        config = self.config(cleave={"mlflow": {"enabled": True, "tracking_uri": uri, **more}})
        r = self.train("--metrics", self.metrics, *args, config=config, steps=steps, code=code, ranks=1)
        self.lines = [json.loads(line) for line in self.metrics.read_text().splitlines()] if self.metrics.exists() else []
        return r

    def warnings(self, r):
        return [line for line in r.stderr.splitlines() if "cleave.mlflow" in line]

    def written(self, curve):
        """Returns a curve with the digits of the metrics file."""
        return {step: float(f"{value:.9g}") for step, value in curve.items()}

    def require_all(self, server, r):
        """The run has exactly the metrics of the metrics file."""
        self.assertEqual(self.warnings(r), [], r.stderr)
        steps = [line for line in self.lines if "event" not in line]
        self.assertGreater(len(steps), 1)
        for name in NAMES:
            self.assertEqual(self.written(server.curve(name)), {line["step"]: line[name] for line in steps}, name)

    def test_a_run_has_metrics_parameters_tags_and_artifacts(self):
        with StandIn() as server:
            r = self.run_to(server.url, "--output", self.dir / "out", experiment_name="small models", run_name="first")
        self.require_all(server, r)
        (run,) = server.runs.values()
        self.assertEqual(server.experiments["small models"], run["info"]["experiment_id"])
        self.assertEqual((run["info"]["run_name"], run["info"]["status"]), ("first", "FINISHED"))
        start = self.lines[0]
        params = run["data"]["params"]
        for key, value in start["config"].items():
            self.assertEqual(params[key], value if isinstance(value, str) else json.dumps(value, separators=(",", ":")), key)
        self.assertEqual((params["model"], params["world_size"]), ("tiny", "1"))
        tags = run["data"]["tags"]
        self.assertEqual(tags["mlflow.source.name"], "cleave train")
        self.assertTrue(tags["mlflow.user"])
        self.assertEqual(tags["cleave.checkpoint_save"], str(self.dir / "out" / "global_step5"))
        files = {pathlib.Path(name).name: json.loads(text) for name, text in server.files.items() if name.endswith(".json")}
        self.assertEqual(files["plan.json"], start["memory_planned"])
        self.assertEqual(files["ds_config.json"]["cleave"]["mlflow"]["run_name"], "first")
        saved = next(line for line in self.lines if line.get("event") == "checkpoint")
        self.assertEqual(server.curve("checkpoint/save_bytes"), {5: saved["bytes"]})
        for kind, bytes in start["memory_planned"]["device"].items():
            self.assertEqual(server.curve(f"memory_planned_bytes/device/{kind}"), {0: bytes})

    def test_report_to_enables_it_and_the_variables_name_server_and_run(self):
        with StandIn() as server:
            server.add_run("an-existing-run")
            os.environ |= {"MLFLOW_TRACKING_URI": server.url + "/", "MLFLOW_RUN_ID": "an-existing-run",
                           "MLFLOW_TRACKING_USERNAME": "me", "MLFLOW_TRACKING_PASSWORD": SECRET}
            r = self.train("--report_to", "mlflow", "--metrics", self.metrics, steps=3)
            self.lines = [json.loads(line) for line in self.metrics.read_text().splitlines()]
        self.require_all(server, r)
        self.assertEqual(list(server.runs), ["an-existing-run"])
        self.assertTrue(all(headers["Authorization"].startswith("Basic ") for *_, headers in server.requests))
        self.assertNotIn(SECRET, r.stdout + r.stderr)

    def test_busy_answers_are_repeated_after_the_time_that_the_server_asks_for(self):
        for faults in ([(429, 1)], [500, 503], ["garbage"], ["closes", "closes"]):
            with StandIn(faults) as server:
                self.require_all(server, self.run_to(server.url))
            if faults == [(429, 1)]:
                self.assertGreaterEqual(server.requests[1][0] - server.requests[0][0], 0.99)

    def test_a_broken_server_is_one_warning_and_the_training_succeeds(self):
        os.environ["MLFLOW_TRACKING_TOKEN"] = SECRET
        for fault, says in ((429, "status 429"), (500, "status 500"), ("garbage", "not that of an MLflow server"), ("closes", ""),
                            ("hangs", ""), (401, "status 401"), (302, "status 302")):
            with StandIn([fault], forever=True) as server:
                begin = time.monotonic()
                r = self.run_to(server.url)
                self.assertLess(time.monotonic() - begin, 60, fault)
            (warning,) = self.warnings(r)
            self.assertTrue(warning.startswith(f"warning: cleave.mlflow: {server.url}: "), warning)
            self.assertIn(says, warning)
            self.assertEqual([line["step"] for line in self.lines if "event" not in line], [1, 2, 3, 4, 5])
            self.assertNotIn(SECRET, r.stdout + r.stderr)

    def test_a_missing_server_is_one_warning_without_the_password_of_its_url(self):
        with StandIn() as server:
            url = server.url.replace("http://", f"http://me:{SECRET}@")
        r = self.run_to(url)
        (warning,) = self.warnings(r)
        self.assertIn("metrics were not sent", warning)
        self.assertNotIn(SECRET, r.stdout + r.stderr)

    def test_artifacts_that_the_server_does_not_take_are_one_warning(self):
        with StandIn() as server:
            for uri, says in (("s3://bucket/a", "artifacts at s3://bucket/a are not supported"),
                              ("mlflow-artifacts:/x", "stores no artifacts")):
                server.add_run("run")
                server.runs["run"]["info"]["artifact_uri"] = uri
                server.takes_files = False
                os.environ["MLFLOW_RUN_ID"] = "run"
                (warning,) = self.warnings(self.run_to(server.url))
                self.assertIn(says, warning)
                self.assertEqual(server.runs["run"]["info"]["status"], "FINISHED")
                self.assertEqual(len(server.curve("loss", "run")), 5)

    def certificate(self):
        """Returns a file with a key and a certificate of an unknown issuer."""
        if not shutil.which("openssl"):
            self.skipTest("needs openssl")
        key, certificate = self.dir / "key.pem", self.dir / "certificate.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, "-days", "2",
                        "-subj", "/CN=127.0.0.1"], check=True, capture_output=True)
        certificate.write_text(key.read_text() + certificate.read_text())
        return certificate

    def test_a_job_of_azure_ml_writes_to_its_own_run_and_leaves_its_status(self):
        self.azure_job(SECRET)
        # A token that ends soon is replaced before its first use for the run.
        self.azure_job("fresh", AZUREML_RUN_TOKEN_EXPIRY=str(int(time.time()) + 60))

    def azure_job(self, token, **variables):
        self.metrics.unlink(missing_ok=True)
        with StandIn(certificate=self.certificate()) as server:
            server.add_run("job-1")
            server.runs["job-1"]["info"]["artifact_uri"] = "azureml://r/artifacts"
            os.environ |= {"MLFLOW_TRACKING_URI": f"azureml://{server.host}/mlflow/v1.0/subscriptions/s/workspaces/w?x=y",
                           "MLFLOW_RUN_ID": "job-1", "MLFLOW_EXPERIMENT_ID": "e", "MLFLOW_EXPERIMENT_NAME": "n",
                           "AZUREML_RUN_TOKEN": SECRET, "MLFLOW_TRACKING_INSECURE_TLS": "true", **variables}
            r = self.train("--report_to", "mlflow", "--metrics", self.metrics, steps=40, ranks=1)
            self.lines = [json.loads(line) for line in self.metrics.read_text().splitlines()]
        self.require_all(server, r)
        calls = {path for _, _, path, _ in server.requests if not path.endswith("/token")}
        base = "/mlflow/v1.0/subscriptions/s/workspaces/w/api/2.0/mlflow/"
        self.assertTrue(all(call.startswith("/mlflow/v1.0/subscriptions/s/workspaces/w/") for call in calls), calls)
        self.assertEqual(calls & {base + "runs/create", base + "runs/update"}, set())
        refreshes = [path for _, _, path, _ in server.requests if path.endswith("/token")]
        self.assertEqual(refreshes, ["/history/v1.0/subscriptions/s/workspaces/w/experimentids/e/runs/job-1/token"] if variables else [])
        used = {headers["Authorization"] for _, _, path, headers in server.requests if path not in refreshes}
        self.assertEqual(used, {"Bearer " + token})
        self.assertLessEqual(server.largest, 150)
        self.assertLessEqual(len(server.runs["job-1"]["data"]["params"]), 200)
        self.assertNotIn(SECRET, r.stdout + r.stderr + json.dumps(server.runs))

    def test_a_certificate_of_an_unknown_issuer_is_one_warning(self):
        with StandIn(certificate=self.certificate()) as server:
            (warning,) = self.warnings(self.run_to(server.url))
        self.assertIn("certificate", warning)
        self.assertEqual(server.requests, [])

    def test_wrong_places_are_errors_before_the_start(self):
        (self.dir / "file").write_text("x")
        for uri, says in (("sqlite:///x.db", "start mlflow server"), ("databricks", "unsupported"), (str(self.dir / "file"), "irectory")):
            r = self.run_to(uri, code=2)
            self.assertIn(says, r.stderr)
            self.assertNotIn("loss", r.stdout)
        r = self.train("--report_to", "wandb", code=2)
        self.assertIn("--report_to wandb: unsupported", r.stderr)

    def test_a_folder_has_the_files_that_mlflow_reads(self):
        store = self.dir / "runs of mlflow"
        r = self.run_to(store.as_uri().replace("%20", " "), experiment_name="x: y", run_name="first")
        self.assertEqual(self.warnings(r), [])
        (run,) = [path.parent for path in store.glob("*/*/meta.yaml")]
        for name in NAMES:
            points = [line.split() for line in (run / "metrics" / name).read_text().splitlines()]
            self.assertEqual(self.written({int(step): float(value) for _, value, step in points}),
                             {line["step"]: line[name] for line in self.lines if "event" not in line}, name)
        self.assertEqual((run / "params" / "zero_optimization.stage").read_text(), "0")
        self.assertEqual((run / "tags" / "mlflow.runName").read_text(), "first")
        self.assertIn("\nstatus: 3\n", (run / "meta.yaml").read_text())
        self.assertTrue((run / "artifacts" / "plan.json").exists())

    def test_another_run_of_an_experiment_shares_its_folder(self):
        for _ in range(2):
            self.run_to(str(self.dir / "store"), experiment_name="both", steps=2)
        (experiment,) = (self.dir / "store").iterdir()
        self.assertEqual(len(list(experiment.glob("*/meta.yaml"))), 2)


if __name__ == "__main__":
    unittest.main(argv=["mlflow_test"])
