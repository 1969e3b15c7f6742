"""A small MLflow tracking server for tests: keeps the received requests, and misbehaves on request."""
import http.server
import json
import ssl
import threading
import time
import urllib.parse


class StandIn:
    """Answers as an MLflow server with one experiment, "Default", of id 0.

    `faults` are the answers to the next requests instead of the right ones: a status, ("status", seconds of Retry-After), "garbage",
    "hangs" or "closes"; the last one repeats if `forever`. `certificate`: a file with key and certificate, for https.
    """

    def __init__(self, faults=(), forever=False, certificate=None):
        self.faults, self.forever = list(faults), forever
        self.requests, self.runs, self.experiments, self.files = [], {}, {"Default": "0"}, {}
        self.takes_files, self.ended = True, threading.Event()
        stand_in = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                stand_in.answer(self)

            do_POST = do_PUT = do_GET

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.host = f"127.0.0.1:{self.server.server_address[1]}"
        self.url = f"http://{self.host}"
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
            self.url = f"https://{self.host}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.server.shutdown()
        self.server.server_close()

    def answer(self, request):
        length = int(request.headers.get("Content-Length") or 0)
        body = request.rfile.read(length)
        path = urllib.parse.urlsplit(request.path)
        self.requests.append((time.monotonic(), request.command, path.path, dict(request.headers)))
        fault = (self.faults[0] if self.forever and len(self.faults) == 1 else self.faults.pop(0)) if self.faults else None
        if fault == "hangs":
            self.ended.wait(60)
        if fault in ("hangs", "closes"):
            request.close_connection = True
            return
        status, headers = 200, {}
        if fault == "garbage":
            said = b"<html>not MLflow</html>"
        elif fault is not None:
            status, *after = fault if isinstance(fault, tuple) else (fault,)
            sent = request.headers.get("Authorization", "")
            said = json.dumps({"error_code": "TEMPORARILY_UNAVAILABLE", "message": f"later: {sent}"}).encode()
            headers = {"Retry-After": str(after[0])} if after else {}
        else:
            status, said = self.right_answer(request.command, path, body)
        request.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(said))}.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(said)

    def right_answer(self, method, path, body):
        query = dict(urllib.parse.parse_qsl(path.query))
        base, proxied = "/api/2.0/mlflow/", "/api/2.0/mlflow-artifacts/artifacts/"
        if method == "PUT" and not self.takes_files:
            return 404, b"no such page"
        if method == "PUT" and path.path.startswith(proxied):
            self.files[path.path[len(proxied):]] = body
            return 200, b"{}"
        name = path.path[path.path.index(base) + len(base):] if base in path.path else ""
        values = json.loads(body) if body else {}
        if name == "experiments/get-by-name":
            found = self.experiments.get(query["experiment_name"])
            if found is None:
                return 404, json.dumps({"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "no such experiment"}).encode()
            return 200, json.dumps({"experiment": {"experiment_id": found}}).encode()
        if name == "experiments/create":
            self.experiments[values["name"]] = str(len(self.experiments))
            return 200, json.dumps({"experiment_id": self.experiments[values["name"]]}).encode()
        if name == "runs/create":
            run = f"{len(self.runs):032x}"
            self.add_run(run, **values)
            return 200, json.dumps({"run": self.runs[run]}).encode()
        if name == "runs/get" and query["run_id"] in self.runs:
            return 200, json.dumps({"run": self.runs[query["run_id"]]}).encode()
        if name == "runs/update":
            self.runs[values["run_id"]]["info"].update(values)
            return 200, b"{}"
        if name == "runs/log-batch":
            self.largest = max(getattr(self, "largest", 0), len(values["metrics"]))
            assert len(values["metrics"]) <= 1000 and len(values["params"]) <= 100 and len(values["tags"]) <= 100, values
            run = self.runs[values["run_id"]]["data"]
            run["metrics"] += values["metrics"]
            run["params"].update({p["key"]: p["value"] for p in values["params"]})
            run["tags"].update({t["key"]: t["value"] for t in values["tags"]})
            return 200, b"{}"
        if name.startswith("experimentids/") or path.path.endswith("/token"):
            return 200, json.dumps({"token": "fresh"}).encode()
        return 404, json.dumps({"error_code": "RESOURCE_DOES_NOT_EXIST", "message": f"no {method} {path.path}"}).encode()

    def add_run(self, run, experiment_id="0", tags=(), **info):
        self.runs[run] = {"info": {"run_id": run, "experiment_id": experiment_id, "status": "RUNNING", **info,
                                   "artifact_uri": f"mlflow-artifacts:/{experiment_id}/{run}/artifacts"},
                          "data": {"metrics": [], "params": {}, "tags": {t["key"]: t["value"] for t in tags}}}

    def curve(self, key, run=None):
        """Returns the points of a metric, {step: value}."""
        data = self.runs[run or next(iter(self.runs))]["data"]
        return {m["step"]: m["value"] for m in data["metrics"] if m["key"] == key}
