#include "tests/fuzz/readers.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>

#include "checkpoint/checksum.h"
#include "checkpoint/manifest.h"
#include "checkpoint/pickle.h"
#include "checkpoint/safetensors.h"
#include "data/text/json_tokenizer.h"
#include "data/text/sentencepiece_tokenizer.h"
#include "data/token_file.h"
#include "tests/fuzz/changed_file.h"
#include "tests/fuzz/checkpoint_readers.h"
#include "tests/fuzz/live_readers.h"

namespace cleave {
namespace {

using nlohmann::json;

// An input that starts like JSON is a header; 64 bytes of tensors follow it.
bool read_safetensors(const std::string& bytes) {
  static const ChangedFile file("a.safetensors");
  if (bytes.starts_with('{')) {
    std::string whole(8, '\0');
    const uint64_t length = bytes.size();
    std::memcpy(whole.data(), &length, sizeof length);
    file.write(whole + bytes + std::string(64, 'x'));
  } else {
    file.write(bytes);
  }
  return reads(Exit::checkpoint, [] {
    const checkpoint::SafetensorsFile read(file.path());
    for (const auto& [name, tensor] : read.tensors()) {
      std::vector<std::byte> some(size_t(std::min<int64_t>(tensor.end - tensor.begin, 16)));
      read.read(name, 0, some);
    }
  });
}

std::vector<std::string> safetensors_seeds() {
  const json header = {{"__metadata__", {{"format", "pt"}}},
                       {"a.weight", {{"dtype", "F32"}, {"shape", {2, 3}}, {"data_offsets", {0, 24}}}},
                       {"b", {{"dtype", "BF16"}, {"shape", {20}}, {"data_offsets", {24, 64}}}}};
  return {header.dump(), fixture("published/llama.expected.safetensors").substr(0, 400),
          fixture("gpt2_tiny.safetensors")};
}

std::string small_manifest() {
  checkpoint::Manifest manifest;
  manifest.state = R"({"step": 3})";
  manifest.shards["a.safetensors"] = {160, 7};
  manifest.tensors[{"master", "w"}] = {
      {4, 6}, DType::fp32, {{"a.safetensors", {{0, 12}}, {1}}, {"a.safetensors", {{12, 24}}, {2}}}};
  manifest.tensors[{"exp_avg", "w"}] = {
      {4, 6},
      DType::fp32,
      {{"a.safetensors", {{0, 21}, 3, 6}, {3}}, {"a.safetensors", {{3, 24}, 3, 6}, {4}}}};
  return manifest.text();
}

// Returns format version 2: without checksums of the text and of shards, and with one per record.
std::string older_manifest() {
  json file = json::parse(small_manifest());
  file["version"] = 2;
  for (const char* name : {"block", "shards", "xxh3"}) file.erase(name);
  for (json& record : file["records"]) record["xxh3"] = json(record["xxh3"][0]);
  return file.dump();
}

bool read_manifest(const std::string& bytes) {
  const auto read = [](const std::string& text) {
    const checkpoint::Manifest manifest = checkpoint::Manifest::read(text);
    CHECK(manifest.block == 0 || checkpoint::Manifest::read(manifest.text()).bytes() == manifest.bytes(),
          "the manifest changes when it is written again");
  };
  const bool whole = reads(Exit::checkpoint, [&] { read(bytes); });
  return reads(Exit::checkpoint, [&] { read(sealed(bytes)); }) || whole;
}

std::vector<std::string> manifest_seeds() { return {small_manifest(), older_manifest()}; }

// Returns the file's structure with a few tokens and merges.
std::string small_tokenizer(const std::string& name) {
  json file = json::parse(fixture("tokenizer_" + name + ".json"));
  json vocab, merges = json::array();
  for (const auto& [token, id] : file["model"]["vocab"].items())
    if (id.get<int>() < 270) vocab[token] = id;
  for (const json& merge : file["model"]["merges"])
    if (vocab.contains(merge[0].get<std::string>() + merge[1].get<std::string>())) merges.push_back(merge);
  file["model"]["vocab"] = vocab, file["model"]["merges"] = merges;
  auto next = int64_t(vocab.size());
  for (json& token : file["added_tokens"])
    if (!vocab.contains(token["content"].get<std::string>())) token["id"] = next++;
  if (file["post_processor"].is_object())
    for (json& token : file["post_processor"]["processors"][1]["special_tokens"]) token["ids"] = {0};
  return file.dump();
}

bool read_tokenizer(const std::string& bytes) {
  return reads(Exit::data, [&] {
    const auto tokenizer = text::parse_json_tokenizer(bytes, "tokenizer.json");
    const std::vector<int32_t> ids = tokenizer->encode(
        "some <|endoftext|> te\xFFxt, 123  \u00e9e\u0301 <strip> "
        "tttttttttttttttttttttttttttttttttttttttttttttttttttt",
        {.frame = true});
    for (const int32_t id : ids) CHECK(id >= 0 && id < tokenizer->vocab_size(), "id {}", id);
    tokenizer->decode(ids);
  });
}

std::vector<std::string> tokenizer_seeds() { return {small_tokenizer("llama3"), small_tokenizer("odd")}; }

// The input is the .idx; its .bin has 20 bytes.
bool read_index(const std::string& bytes) {
  static const ChangedFile bin("a.bin"), idx("a.idx");
  static const bool written = (bin.write(std::string(20, '\1')), true);
  idx.write(bytes);
  return written && reads(Exit::data, [] {
           const data::TokenFile file(bin.path());
           const data::DocumentIndex* documents = file.documents();
           for (int64_t i = 0; i < documents->documents(); ++i) {
             const Range d = documents->document(i);
             CHECK(0 <= d.begin && d.begin <= d.end && d.end <= file.size(), "document {} is [{}, {})", i,
                   d.begin, d.end);
           }
           file.check_all();
         });
}

std::vector<std::string> index_seeds() {
  std::vector<std::string> seeds;
  for (const auto& [code, token_bytes] : {std::pair{8, 2}, std::pair{4, 4}, std::pair{1, 1}}) {
    std::string out("MMIDIDX\0\0", 9);
    const auto add = [&](auto value) { out.append(reinterpret_cast<const char*>(&value), sizeof value); };
    const int32_t tokens = 20 / token_bytes;
    add(uint64_t{1}), add(uint8_t(code)), add(uint64_t{3}), add(uint64_t{3});
    for (const int32_t length : {2, 0, tokens - 2}) add(length);
    for (const int64_t pointer : {0, 2, 2}) add(pointer * token_bytes);
    for (const int64_t document : {0, 1, 3}) add(document);
    seeds.push_back(out);
  }
  return seeds;
}

bool read_pickle(const std::string& bytes) {
  return reads(Exit::checkpoint, [&] {
    const checkpoint::Pickle pickle(std::as_bytes(std::span(bytes)), [](const std::string&) { return true; });
    CHECK(pickle.size() <= bytes.size(), "{} bytes of {}", pickle.size(), bytes.size());
    pickle.root().find("module");
  });
}

// Returns pickles made by Python, one per line: description, hexadecimal digits, value.
std::vector<std::string> pickle_seeds() {
  std::vector<std::string> seeds;
  std::istringstream lines(fixture("pickles.txt"));
  for (std::string line; std::getline(lines, line);) {
    const size_t begin = line.find('\t') + 1, end = line.find('\t', begin);
    std::string bytes;
    for (size_t i = begin; i + 1 < end; i += 2) bytes += char(std::stoi(line.substr(i, 2), nullptr, 16));
    if (begin != 0 && line[0] != '#') seeds.push_back(bytes);
  }
  return seeds;
}

#ifdef CLEAVE_HAVE_SENTENCEPIECE
bool read_sentencepiece(const std::string& bytes) {
  static const ChangedFile file("a.model");
  file.write(bytes);
  return reads(Exit::data, [] {
    const auto tokenizer = text::open_sentencepiece(file.path());
    const std::vector<int32_t> ids = tokenizer->encode(
        "The text of A, \u2168 \ufb01 e\u0301 \xFF<sep>  123\n aaaaaaaaaaaaaaaa", {.frame = true});
    for (const int32_t id : ids) CHECK(id >= 0 && id < tokenizer->vocab_size(), "id {}", id);
    tokenizer->decode(ids);
  });
}

// Returns the first pieces of a model, and a table that replaces A and the letter fi.
std::string small_sentencepiece(const std::string& name) {
  const std::string model = fixture("sentencepiece_" + name + ".model");
  size_t end = 0;
  for (int piece = 0; piece < 300 && model[end] == '\x0a'; ++piece) end += 2 + size_t(model[end + 1]);
  std::vector<uint32_t> units(512);
  const auto child = [&](uint32_t from, uint32_t label, uint32_t children) {
    units[from ^ label] = label | (from ^ label ^ children) << 10;
  };
  const auto leaf = [&](uint32_t from, uint32_t label, uint32_t value) {
    child(from, label, 256 + label);
    units[from ^ label] |= 1 << 8, units[256 + label] = value | uint32_t{1} << 31;
  };
  leaf(0, 'A', 0), child(0, 0xEF, 256), child(256, 0xAC, 0), leaf(0, 0x81, 2);
  std::string map(4, '\0');
  const auto bytes = uint32_t(units.size() * sizeof(uint32_t));
  std::memcpy(map.data(), &bytes, sizeof bytes);
  map.append(reinterpret_cast<const char*>(units.data()), bytes).append("a\0fi\0", 5);
  const auto field = [](char id, const std::string& content) {
    return id + std::string{char((content.size() & 0x7f) | 0x80), char(content.size() >> 7)} + content;
  };
  const std::string symbol = "\x0a\x05<sep>\x18\x04", bpe = "\x18\x02\x98\x02\x01";
  return model.substr(0, end) + field('\x0a', symbol) + field('\x12', name == "bpe" ? bpe : "\x18\x01") +
         field('\x1a', field('\x12', map));
}

std::vector<std::string> sentencepiece_seeds() {
  return {small_sentencepiece("unigram"), small_sentencepiece("bpe")};
}
#endif

const FuzzedReader kReaders[] = {{"safetensors", read_safetensors, safetensors_seeds},
                                 {"manifest", read_manifest, manifest_seeds},
                                 {"tokenizer", read_tokenizer, tokenizer_seeds},
                                 {"index", read_index, index_seeds},
#ifdef CLEAVE_HAVE_SENTENCEPIECE
                                 {"sentencepiece", read_sentencepiece, sentencepiece_seeds},
#endif
                                 {"pickle", read_pickle, pickle_seeds},
                                 {"torch", read_torch, torch_seeds},
                                 {"deepspeed", read_deepspeed, deepspeed_seeds},
                                 {"adapters", read_adapters, adapters_seeds},
                                 {"http", read_http, http_seeds},
                                 {"metrics", read_metrics, metrics_seeds},
                                 {"mlflow", read_mlflow, mlflow_seeds},
                                 {"events", read_events, events_seeds}};

}  // namespace

std::span<const FuzzedReader> fuzzed_readers() { return kReaders; }

const FuzzedReader& fuzzed_reader(const std::string& name) {
  const auto* at =
      std::find_if(std::begin(kReaders), std::end(kReaders), [&](const auto& r) { return r.name == name; });
  CHECK(at != std::end(kReaders), "no reader is called {}", name);
  return *at;
}

}  // namespace cleave
