#!/usr/bin/env python3
"""Notices that a host is about to be taken away: a file, and Azure's scheduled events by a stand-in. Usage: notices_test.py CLEAVE"""
import http.server
import json
import threading
import unittest

from run_test import RunTest

EVENT = {"EventId": "1", "EventType": "Preempt", "ResourceType": "VirtualMachine", "Resources": ["vm_0"], "EventStatus": "Scheduled",
         "NotBefore": "Mon, 11 Apr 2022 22:26:58 GMT"}


class Metadata:
    """Azure's instance metadata on this machine. `answers` are those of /scheduledevents in order; the last one repeats."""

    def __init__(self, *answers):
        self.answers, self.wrong = list(answers), []
        stand_in = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                if self.headers.get("Metadata") != "true" or "api-version=" not in self.path:
                    stand_in.wrong.append(self.path)
                name = self.path.startswith("/metadata/instance/compute/name?")
                answers = stand_in.answers
                body = b"vm_0" if name else answers.pop(0) if len(answers) > 1 else answers[0]
                self.send_response(200)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/metadata"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def events(*found):
    return json.dumps({"DocumentIncarnation": 1, "Events": found}).encode()


class Notices(RunTest):
    def stops(self, env, says):
        job = self.start(ranks=2, env=env)
        said = self.end(job, 75)
        self.assertIn(says + "; the job saves and stops", said)
        self.assertEqual(said.count("the job saves and stops"), 1)  # one rank per host
        self.assertIn("saved", said)

    def test_an_event_of_azure_saves_and_stops_the_job(self):
        other = {**EVENT, "Resources": ["vm_1"]}
        with Metadata(b"garbage", events(), events(other), events(other, EVENT)) as metadata:
            self.stops({"CLEAVE_SCHEDULED_EVENTS": metadata.url}, "Azure will preempt this host at Mon, 11 Apr 2022 22:26:58 GMT")
            self.assertEqual(metadata.wrong, [])

    def test_a_file_saves_and_stops_the_job(self):
        file = self.dir / "leave"
        job = self.start(ranks=2, env={"CLEAVE_NOTICE_FILE": str(file)})
        self.until(job, "/100000  loss")
        file.touch()
        said = self.end(job, 75)
        self.assertIn(f"the file {file} exists; the job saves and stops", said)

    def test_a_server_that_does_not_answer_changes_nothing(self):
        with Metadata(b"") as metadata:
            url = metadata.url
        job = self.start(steps=3, env={"CLEAVE_SCHEDULED_EVENTS": url})
        self.assertNotIn("warning", self.end(job, 0))
        self.assertIn("expected off or an address", self.end(self.start(steps=3, env={"CLEAVE_SCHEDULED_EVENTS": "yes"}), 2))


if __name__ == "__main__":
    unittest.main(verbosity=2)
