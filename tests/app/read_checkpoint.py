"""A second reader of checkpoints, written from docs/checkpoint_format.md with numpy only."""
import json
import pathlib
import struct

import numpy


def header_of(path):
    """Returns the JSON text of a safetensors header, and the offset of the values."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        return file.read(length), 8 + length


class Checkpoint:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.text = (self.folder / "manifest.json").read_bytes()
        self.manifest = json.loads(self.text)
        assert self.manifest["format"] == "cleave" and self.manifest["version"] <= 4, self.manifest["version"]
        self.headers = {}

    def stored(self, record):
        """Returns the values of a record."""
        name, numbers = {"fp32": ("F32", "<f4"), "int64": ("I64", "<i8")}[record.get("dtype", "fp32")]
        path = self.folder / record["file"]
        if path not in self.headers:
            text, begin = header_of(path)
            self.headers[path] = json.loads(text), begin
        header, data = self.headers[path]
        entry = header[record["name"]]
        assert entry["dtype"] == name, entry
        begin, end = entry["data_offsets"]
        with open(path, "rb") as file:
            file.seek(data + begin)
            return numpy.frombuffer(file.read(end - begin), numbers)

    def tensors(self):
        """Returns {(kind, tensor): array}."""
        out, filled = {}, {}
        for record in self.manifest["records"]:
            key = record["kind"], record["tensor"]
            if key not in out:
                out[key] = numpy.zeros(int(numpy.prod(record["shape"])), self.stored(record).dtype)
                filled[key] = numpy.zeros(out[key].size, int)
            begin, end = record["range"]
            places = numpy.arange(begin, end)
            if "every" in record:
                run, stride = record["every"]
                places = places[(places - begin) % stride < run]
            out[key][places] = self.stored(record)
            filled[key][places] += 1
        for key, times in filled.items():
            assert (times == 1).all(), key
        return {key: values.reshape(self.shape(*key)) for key, values in out.items()}

    def shape(self, kind, tensor):
        return next(r["shape"] for r in self.manifest["records"] if (r["kind"], r["tensor"]) == (kind, tensor))
