// Reads manifests that are damaged, incomplete or from another program.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "tests/checkpoint/hand_made.h"
#include "tests/scratch.h"

namespace cleave::testing {
namespace {
using nlohmann::json;

class Manifest : public ::testing::Test {
 protected:
  // w in two pieces with gaps, bias in one.
  Manifest() {
    comm::run_ranks(2, [&](comm::Communicator& world) {
      std::vector<checkpoint::Record> mine = {
          given("master", "w", {4, 6}, world.rank() == 0 ? columns(4, 6, 0, 2) : columns(4, 6, 2, 6))};
      if (world.rank() == 0) mine.push_back(given("master", "bias", {5}, {{0, 5}}));
      checkpoint::save_checkpoint(scratch_.folder(), "a", mine, R"({"step": 7})", world);
    });
    whole_ = json::parse(scratch_.read("a/manifest.json"));
  }
  // Writes a manifest like a writer: ends with the checksum of the text, computed with zeros in its place.
  void write(json manifest) const {
    if (manifest.is_object() && manifest.contains("xxh3")) manifest["xxh3"] = std::string(16, '0');
    std::string text = manifest.dump(1) + "\n";
    if (const size_t at = text.rfind(std::string(16, '0')); at != std::string::npos)
      text.replace(at, 16, fmt::format("{:016x}", XXH3_64bits(text.data(), text.size())));
    scratch_.write("a/manifest.json", text);
  }
  void refused(const json& manifest, std::initializer_list<std::string_view> words) const {
    SCOPED_TRACE(manifest.dump());
    write(manifest);
    expect_error(Exit::checkpoint, {"manifest.json: damaged manifest"}, [&] { open(); });
    expect_error(Exit::checkpoint, words, [&] { open(); });
  }
  checkpoint::CheckpointReader open() const { return {scratch_.folder(), "a"}; }
  // The record of a tensor that starts at this element.
  static json& record(json& manifest, const std::string& tensor, int64_t begin) {
    for (json& r : manifest["records"])
      if (r["tensor"] == tensor && r["range"][0] == begin) return r;
    throw std::runtime_error("no such record");
  }

  Scratch scratch_;
  json whole_;
};

TEST_F(Manifest, OfThisFormatIsRead) {
  write(whole_);
  EXPECT_EQ(read(open(), "master", "w", {4, 6}, {{0, 24}}), expected("w", {{0, 24}}));
  EXPECT_EQ(whole_["version"], 3);
}

TEST_F(Manifest, OfAnotherVersionOrFormatIsRejectedWithBoth) {
  for (const json& version : {json(0), json(5), json(-1), json("1"), json(1.0), json(true), json(nullptr)}) {
    json m = whole_;
    m["version"] = version;
    refused(m, {"unsupported version (got '" + version.dump() + "', expected 1 to 4"});
  }
  json m = whole_;
  m["format"] = "other";
  refused(m, {"'other'", "expected 'cleave')"});
}

// Only tensors that older programs cannot read raise the version.
TEST_F(Manifest, IsOfVersion4WithIntegerTensorsAndOfVersion3Otherwise) {
  const auto alone = comm::self_communicator();
  const auto saved = [&](bool counts) {
    std::vector<checkpoint::Record> records = {given("master", "bias", {5}, {{0, 5}})};
    if (counts) records.push_back(given_counts("n", {2}, {{0, 2}}));
    checkpoint::save_checkpoint(scratch_.folder(), "a", records, "{}", *alone);
    return json::parse(scratch_.read("a/manifest.json"));
  };
  EXPECT_EQ(saved(false)["version"], 3);
  json m = saved(true);
  EXPECT_EQ(m["version"], 4);
  EXPECT_FALSE(record(m, "bias", 0).contains("dtype"));
  EXPECT_EQ(record(m, "n", 0)["dtype"], "int64");
  for (const json& other : {json("bf16"), json(5), json(nullptr), json(1e300)}) {
    record(m, "n", 0)["dtype"] = other;
    refused(m, {"\"dtype\"", "fp32 or int64"});
  }
  m = whole_;
  record(m, "w", 2)["dtype"] = "int64";
  refused(m, {"\"dtype\"", "the value of its other parts"});
}

// Every part is named if it is missing or of another type.
TEST_F(Manifest, WithAMissingPartOrAPartOfAnotherTypeIsRejectedByThatPart) {
  const json others[] = {
      nullptr,       true, -1, 1.5, 7, "text", json::array(), json::array({"a"}), json::array({1.5, 2}),
      json::object()};
  const auto same_kind = [](const json& a, const json& b) {
    return a.type() == b.type() || (a.is_number_integer() && b.is_number_integer());
  };
  for (const char* part : {"format", "version", "state", "records", "block", "shards", "xxh3"}) {
    json m = whole_;
    m.erase(part);
    refused(m, {fmt::format("\"{}\" is missing", part)});
    for (const json& other : others) {
      if (std::string(part) == "state" || std::string(part) == "xxh3" || same_kind(other, whole_[part]))
        continue;
      m = whole_, m[part] = other;
      refused(m, {part});
    }
  }
  for (const char* part : {"kind", "tensor", "shape", "range", "every", "file", "name", "xxh3"}) {
    json m = whole_;
    record(m, "w", 0).erase(part);
    // Without "every" the record does not match its name.
    refused(m, {std::string(part) == "every" ? "name" : fmt::format("\"{}\" is missing", part)});
    for (const json& other : others) {
      m = whole_;
      json& field = record(m, "w", 0)[part];
      if (other.is_string() && field.is_string()) continue;
      if (other.is_array() && other.empty() && (std::string(part) == "shape" || std::string(part) == "xxh3"))
        continue;
      field = other;
      refused(m, {fmt::format("\"{}\"", part)});
    }
  }
  json m = whole_;
  m["records"][0] = 5;
  refused(m, {"is missing in '5'"});
}

TEST_F(Manifest, ThatIsNotJsonIsQuoted) {
  for (const auto& [text, says] : {std::pair{"", "1:1: it is empty"},
                                   {"{\n", "2:1: it is not JSON"},
                                   {"[1]", "it is not a JSON object and starts with '[1]'"},
                                   {"7", "it is not a JSON object and starts with"},
                                   {"\x1b[31m", "; the file starts with '\\x1b[31m'"}}) {
    scratch_.write("a/manifest.json", text);
    expect_error(Exit::checkpoint, {"damaged manifest", says}, [&] { open(); });
  }
  for (size_t size = 0; size < whole_.dump().size(); size += 11) {
    scratch_.write("a/manifest.json", whole_.dump().substr(0, size));
    expect_error(Exit::checkpoint, {"damaged manifest"}, [&] { open(); });
  }
}

TEST_F(Manifest, ThatListsAnElementTwiceOrNotAtAllIsRejectedByThatElement) {
  json m = whole_;
  for (size_t i = 0; i < m["records"].size(); ++i)
    if (m["records"][i] == record(m, "w", 2)) {
      m["records"].erase(i);
      break;
    }
  refused(m, {"8 of 24 elements of master/w are stored", "element 2 not at all"});
  m = whole_;
  m["records"].push_back(record(m, "bias", 0));
  refused(m, {"10 of 5 elements of master/bias are stored", "element 0 more than once"});
  m = whole_;
  record(m, "bias", 0)["shape"] = {7};
  refused(m, {"5 of 7 elements of master/bias", "element 5 not at all"});
  record(m, "bias", 0)["shape"] = {2, 2};
  refused(m, {", exceed master/bias, which has 4"});
}

TEST_F(Manifest, WithAnyOtherByteIsRejected) {
  const std::string text = scratch_.read("a/manifest.json");
  for (size_t at = 0; at < text.size(); ++at) {
    std::string other = text;
    other[at] = char(other[at] ^ (at % 7 ? 1 : 32));
    scratch_.write("a/manifest.json", other);
    expect_error(Exit::checkpoint, {"damaged manifest"}, [&] { open(); });
  }
}

TEST_F(Manifest, OfVersions1And2HasAChecksumForAllOfARecord) {
  json m = whole_;
  m["version"] = 2;
  for (const char* part : {"block", "shards", "xxh3"}) m.erase(part);
  for (json& r : m["records"]) {
    const std::vector<float> held = read(open(), r["kind"], r["tensor"], r["shape"],
                                         {{r["range"][0], r["range"][1]},
                                          r.contains("every") ? r["every"][0].get<int64_t>() : 0,
                                          r.contains("every") ? r["every"][1].get<int64_t>() : 0});
    r["xxh3"] = fmt::format("{:016x}", XXH3_64bits(held.data(), held.size() * 4));
  }
  const json good = m;
  record(m, "bias", 0)["xxh3"] = "0123456789abcdef";
  write(good);
  EXPECT_EQ(open().faults(1), std::vector<std::string>());
  EXPECT_EQ(read(open(), "master", "w", {4, 6}, {{0, 24}}), expected("w", {{0, 24}}));
  write(m);
  const checkpoint::CheckpointReader reader = open();
  EXPECT_EQ(read(reader, "master", "w", {4, 6}, {{0, 24}}), expected("w", {{0, 24}}));
  for (int time = 0; time < 2; ++time)
    expect_error(Exit::checkpoint, {"master/bias[0:5]", "checksum"}, [&] {
      read(reader, "master", "bias", {5}, {{0, 5}});
    });
}

TEST_F(Manifest, WithContradictoryPartsIsRejected) {
  json m = whole_;
  record(m, "w", 0)["shape"] = {6, 4};
  refused(m, {"\"shape\"", "the value of its other parts"});
  m = whole_;  // w's second piece claims to be the first
  record(m, "w", 2)["range"] = {0, 22};
  refused(m, {"\"name\"", "the name for the record's kind, tensor and elements"});
  m = whole_;
  record(m, "bias", 0)["tensor"] = "other";
  refused(m, {"\"name\""});
}

TEST_F(Manifest, WithImpossibleNumbersIsRejected) {
  const auto with = [&](const char* part, json value, std::string_view name, std::string_view word) {
    json m = whole_;
    json& r = record(m, "bias", 0);
    r[part] = std::move(value);
    if (!name.empty()) r["name"] = name;
    refused(m, {word});
  };
  with("shape", {int64_t{1} << 40, int64_t{1} << 40}, "", "is not a valid shape");
  with("shape", {uint64_t{1} << 63}, "", "whole numbers");
  with("shape", {-5}, "", "whole numbers");
  with("range", {0, 5, 6}, "", "two whole numbers");
  with("range", {5, 0}, "master/bias[5:0]", ", exceed master/bias");
  with("every", {1, 0}, "", "a distance above 0");
  with("every", {2, 1}, "master/bias[0:5:2/1]", ", exceed master/bias");
  for (const char* sum :
       {"", "12", "0123456789abcdeg", "0123456789abcdef0", "-123456789abcdef", "0123456789ABCDEF"})
    with("xxh3", json::array({sum}), "", "16 lower-case hexadecimal digits");
  with("xxh3", json::array(), "", " has the wrong number of checksums (got 0, expected 1");
  with("file", "../shard", "", "is not a valid shard name");
  with("shape", std::vector<int64_t>(33, 1), "", "at most 32 numbers");
  json m = whole_;  // more runs than memory can list
  json& r = record(m, "bias", 0);
  r["shape"] = {(int64_t{1} << 60) + 1}, r["range"] = {0, (int64_t{1} << 60) + 1}, r["every"] = {1, 2};
  r["name"] = fmt::format("master/bias[0:{}:1/2]", (int64_t{1} << 60) + 1);
  refused(m, {"element 1 not at all"});
  m = whole_;  // each is valid alone
  for (const char* tensor : {"b1", "b2", "b3", "b4", "b5"}) {
    json big = record(m, "bias", 0);
    big["tensor"] = tensor, big["shape"] = {int64_t{1} << 59}, big["range"] = {0, int64_t{1} << 59};
    big["name"] = fmt::format("master/{}[0:{}]", tensor, int64_t{1} << 59);
    m["records"].push_back(big);
  }
  for (json& r2 : m["records"]) r2["xxh3"] = r2["xxh3"][0];
  m["version"] = 2;
  refused(m, {"its tensors have impossibly many bytes"});
}

TEST_F(Manifest, WithAnotherChecksumDoesNotMatchTheShard) {
  json m = whole_;
  std::string sum = record(m, "bias", 0)["xxh3"][0];
  sum[3] = sum[3] == '0' ? '1' : '0';
  record(m, "bias", 0)["xxh3"][0] = sum;
  write(m);
  const checkpoint::CheckpointReader reader = open();
  EXPECT_EQ(read(reader, "master", "w", {4, 6}, {{0, 24}}), expected("w", {{0, 24}}));
  expect_error(Exit::checkpoint, {"master/bias[0:5]", "checksum"}, [&] {
    read(reader, "master", "bias", {5}, {{0, 5}});
  });
}

}  // namespace
}  // namespace cleave::testing
