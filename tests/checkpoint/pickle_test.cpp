// Pickles of Python (tests/fixtures/make_pickle_fixtures.py), files of torch (make_published_fixtures.py),
// and malicious files.
#include "checkpoint/pickle.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "checkpoint/torch_file.h"
#include "core/philox.h"
#include "tests/scratch.h"

namespace cleave::testing {
namespace {

using Kind = checkpoint::Pickled::Kind;

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

std::string from_hex(const std::string& hex) {
  std::string out;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) out += char(std::stoi(hex.substr(i, 2), nullptr, 16));
  return out;
}

std::string text_of(const checkpoint::Pickled& v) {
  const auto listed = [&](char open, char close) {
    std::string out(1, open);
    for (size_t i = 0; i < v.items.size(); ++i)
      out += (i == 0 ? "" : open == '{' && i % 2 == 1 ? ": " : ", ") + text_of(*v.items[i]);
    return out + close;
  };
  switch (v.kind) {
    case Kind::none:
      return "None";
    case Kind::boolean:
      return v.integer ? "True" : "False";
    case Kind::integer:
      return v.text.empty() ? std::to_string(v.integer) : "more";
    case Kind::number:
      return fmt::format("{}", v.number);
    case Kind::text:
      return "\"" + v.text + "\"";
    case Kind::bytes: {
      std::string hex;
      for (const char c : v.text) hex += fmt::format("{:02x}", uint8_t(c));
      return "b\"" + hex + "\"";
    }
    case Kind::list:
      return listed('[', ']');
    case Kind::dict:
      return listed('{', '}');
    default:
      return v.text;
  }
}

std::vector<std::string> python_pickles() {
  std::vector<std::string> all;
  std::ifstream file(FIXTURES "/pickles.txt");
  for (std::string line; std::getline(file, line);) all.push_back(line);
  return all;
}

TEST(Pickle, ValuesOfEveryProtocolEqualPython) {
  int seen = 0;
  for (const std::string& line : python_pickles()) {
    const size_t a = line.find('\t'), b = line.find('\t', a + 1);
    const std::string bytes = from_hex(line.substr(a + 1, b - a - 1));
    const checkpoint::Pickle pickle(bytes_of(bytes));
    EXPECT_EQ(text_of(pickle.root()), line.substr(b + 1)) << line.substr(0, a);
    EXPECT_EQ(pickle.size(), bytes.size());
    ++seen;
  }
  EXPECT_GT(seen, 150);
}

TEST(Pickle, TheLastValueOfAKeyIsFound) {
  const checkpoint::Pickle pickle(
      bytes_of("\x80\x02}(X\x01" + std::string(3, '\0') + "aK\x01X\x01" + std::string(3, '\0') + "aK\x02u."));
  ASSERT_TRUE(pickle.root().find("a"));
  EXPECT_EQ(pickle.root().find("a")->integer, 2);
  EXPECT_EQ(pickle.root().find("b"), nullptr);
}

void refused(const std::string& bytes, std::string_view why) {
  expect_error(Exit::checkpoint, {"of the pickle", why}, [&] { checkpoint::Pickle(bytes_of(bytes), {}); });
}

TEST(Pickle, CallsAreRejectedByName) {
  refused(
      "\x80\x02"
      "cposix\nsystem\nX\x02" +
          std::string(3, '\0') + "ls\x85R.",
      "'posix.system', which is neither");
  refused(
      "\x80\x04\x8c\x08"
      "builtins\x8c\x04"
      "eval\x93\x8c\x01"
      "1\x85R.",
      "'builtins.eval'");
  refused(
      "\x80\x02"
      "ctorch.serialization\nload\n.",
      "'torch.serialization.load'");
  refused(
      "\x80\x02"
      "ctorch\nload\n.",
      "'torch.load'");
  refused(
      "\x80\x02"
      "ctorch\nFloatStorage\n)R.",
      "calls 'torch.FloatStorage'");
  refused(
      "\x80\x02"
      "ccollections\nOrderedDict\n]\x85R.",
      "has unexpected arguments");
  refused(
      "\x80\x02"
      "K\x01)R.",
      "it calls a value that is not a class");
  refused(
      "\x80\x02"
      "K\x01}b.",
      "it sets attributes of a value that has none");
  refused(
      "\x80\x02"
      "X\x01" +
          std::string(3, '\0') + "aQ.",
      "not a tensor storage");
  refused(
      "\x80\x02"
      "P1\n.",
      "the instruction 0x50");
}

TEST(Pickle, AcceptsObjectsOfNamedClassesWithTheirAttributes) {
  const std::string bytes =
      "\x80\x02}(K\x01"
      "cdeepspeed.x\nScaler\n)\x81}K\x05K\x06sbK\x02K\x03u.";
  refused(bytes, "'deepspeed.x.Scaler'");
  const checkpoint::Pickle pickle(bytes_of(bytes),
                                  [](const std::string& name) { return name.starts_with("deepspeed."); });
  ASSERT_EQ(pickle.root().items.size(), 4u);
  EXPECT_EQ(pickle.root().items[1]->kind, Kind::object);
  EXPECT_EQ(pickle.root().items[1]->text, "deepspeed.x.Scaler");
  EXPECT_EQ(pickle.root().items[1]->find("a"), nullptr) << "5 is not a name";
  EXPECT_EQ(pickle.root().items[3]->integer, 3);
  const std::string named =
      "\x80\x02"
      "cdeepspeed.x\nScaler\n)\x81}X\x01" +
      std::string(3, '\0') + "aK\x06sb.";
  const checkpoint::Pickle other(bytes_of(named), [](const std::string&) { return true; });
  ASSERT_TRUE(other.root().find("a"));
  EXPECT_EQ(other.root().find("a")->integer, 6);
  EXPECT_EQ(other.root().find("b"), nullptr);
}

TEST(Pickle, DamageIsRejected) {
  refused("", "the data end too early");
  refused("\x80\x02", "the data end too early");
  refused("\x80\x01.", "protocol (got 1");
  refused("\x80\x09.", "protocol (got 9");
  refused("\x80\x02.", "from an empty stack");
  refused("\x80\x02(.", "from an empty stack");
  refused("\x80\x02t.", "a mark is missing");
  refused(
      "\x80\x02X\xff\xff\xff\xff"
      "a.",
      "the data end too early");
  refused("\x80\x02\x8d\xff\xff\xff\xff\xff\xff\xff\xff.", "the data end too early");
  refused("\x80\x02h\x05.", "has not stored");
  refused(
      "\x80\x02K\x01K\x02"
      "a.",
      "not a container");
  refused("\x80\x02}(K\x01u.", "a key has no value");
  refused(
      "\x80\x02"
      "cno line end",
      "the data end too early");
}

// A list of one instruction, repeated.
std::string many(const std::string& instruction, size_t times) {
  std::string bytes = "\x80\x02](";
  for (size_t i = 0; i < times; ++i) bytes += instruction;
  return bytes + "e.";
}

TEST(Pickle, OfFewBytesTakesLittleMemory) {
  constexpr size_t kMany = 1 << 20;
  refused(many("]", kMany), "its values need more memory than 32 times its");
  // One storage, referenced many times.
  const std::string zeros(3, '\0');
  const std::string storage = "(X\x07" + zeros + "storagectorch\nFloatStorage\nX\x64" + zeros +
                              std::string(100, 'k') + "NK\x01tq\x01";
  refused(many("h\x01Q", kMany).insert(4, storage), "its values need more memory than 32 times its");
  refused("\x80\x02Nr\xff\xff\xff\x7f.", "it stores a value at an impossible index");
  for (const std::string instruction : {"N", "\x88", "K\x07", "M\x01\x02"}) {
    const checkpoint::Pickle pickle(bytes_of(many(instruction, kMany)));
    EXPECT_EQ(pickle.root().items.size(), kMany);
  }
}

// Errors and values are fine; sanitizers find everything else.
template <class Read>
void fuzz(const std::string& good, int times, Read&& read) {
  const Philox random{7, hash_name("fuzz")};
  uint64_t at = 0;
  const auto below = [&](size_t n) { return std::min(n - 1, size_t(random.uniform(at++) * double(n))); };
  for (int i = 0; i < times; ++i) {
    std::string bytes = good;
    for (size_t changes = 1 + below(4); changes > 0 && !bytes.empty(); --changes) switch (below(4)) {
        case 0:
          bytes[below(bytes.size())] = char(below(256));
          break;
        case 1:
          bytes[below(bytes.size())] ^= char(1 << below(8));
          break;
        case 2:
          bytes.insert(below(bytes.size()), 1, char(below(256)));
          break;
        default:
          bytes.erase(below(bytes.size()), 1 + below(8));
          break;
      }
    try {
      read(bytes);
    } catch (const Error& e) {
      EXPECT_EQ(int(e.exit()), int(Exit::checkpoint)) << e.what();
    }
  }
}

// Overwriting a file may wait for the disk; writing a new one does not.
std::string write_new(const Scratch& scratch, const std::string& bytes) {
  std::filesystem::remove(scratch.path("x.bin"));
  return scratch.write("x.bin", bytes);
}

std::string torch_file_of(const char* name) {
  std::ifstream in(std::string(FIXTURES "/published/") + name, std::ios::binary);
  std::stringstream all;
  all << in.rdbuf();
  return all.str();
}

TEST(TorchFile, AnyBytesAreTensorsOrAnErrorThatNamesTheFile) {
  const Scratch scratch;
  const std::string good = torch_file_of("llama_torch/pytorch_model.bin");
  ASSERT_GT(good.size(), 10000u);
  // Changes programs and tables only; every byte of the weights is valid.
  const size_t pickle = good.find("data.pkl"), storage = good.find("/data/0");
  ASSERT_LT(pickle, storage);
  fuzz(good.substr(0, storage), 1500, [&](const std::string& head) {
    const std::string path = write_new(scratch, head + good.substr(storage));
    checkpoint::TorchFile file(path);
  });
  const size_t table = good.find("PK\x01\x02");
  fuzz(good.substr(table), 1500, [&](const std::string& tail) {
    const std::string path = write_new(scratch, good.substr(0, table) + tail);
    checkpoint::TorchFile file(path);
    std::vector<std::byte> bytes(4);
    for (const auto& [name, t] : file.tensors())
      if (t.end - t.begin >= 4) file.read(name, 0, bytes);
  });
}

template <class T>
std::string little(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}
std::string end_record(uint16_t entries, uint32_t size, uint32_t begin) {
  return "PK\x05\x06" + little(uint32_t{0}) + little(entries) + little(entries) + little(size) +
         little(begin) + little(uint16_t{0});
}
// A ZIP archive of uncompressed files.
std::string zip(const std::vector<std::pair<std::string, std::string>>& files) {
  std::string out, table;
  for (const auto& [name, content] : files) {
    const std::string sizes = little(uint32_t(content.size())) + little(uint32_t(content.size())) +
                              little(uint16_t(name.size())) + little(uint16_t{0});
    table += "PK\x01\x02" + std::string(16, '\0') + sizes + std::string(10, '\0') +
             little(uint32_t(out.size())) + name;
    out += "PK\x03\x04" + std::string(14, '\0') + sizes + name + content;
  }
  return out + table + end_record(uint16_t(files.size()), uint32_t(table.size()), uint32_t(out.size()));
}

// {"w": a tensor of this shape} with 4 numbers in its storage.
std::string torch_file_with(const std::string& shape) {
  const std::string zeros(3, '\0');
  const auto text = [&](const std::string& t) { return "X" + std::string(1, char(t.size())) + zeros + t; };
  const std::string pickle = "\x80\x02}" + text("w") + "ctorch._utils\n_rebuild_tensor_v2\n((" +
                             text("storage") + "ctorch\nFloatStorage\n" + text("0") + text("cpu") +
                             "K\x04tQK" + '\0' + shape + shape + "\x89}tRs.";
  return zip({{"x/data.pkl", pickle}, {"x/data/0", std::string(16, '\0')}});
}

TEST(TorchFile, OfImpossibleSizesIsRejected) {
  const Scratch scratch;
  const auto refused_file = [&](const std::string& bytes, std::string_view why) {
    expect_error(Exit::checkpoint, {"cannot be read as a torch.save file", why},
                 [&] { checkpoint::TorchFile file(write_new(scratch, bytes)); });
  };
  const checkpoint::TorchFile good(write_new(scratch, torch_file_with("K\x01\x85")));
  EXPECT_EQ(good.tensors().at("w").shape, std::vector<int64_t>{1});
  std::string dims = "(";
  for (int i = 0; i < 33; ++i) dims += "K\x01";
  refused_file(torch_file_with(dims + "t"), "'w' has an impossible shape");
  refused_file(torch_file_with("K\x05\x85"), "has more elements than the file");
  // Its ZIP64 record would start before the file.
  refused_file(
      "PK\x06\x07" + little(uint32_t{0}) + little(uint64_t{10}) + little(uint32_t{1}) + end_record(0, 0, 0),
      "points outside of the file");
}

TEST(TorchFile, TruncatedAnywhereIsRejected) {
  const Scratch scratch;
  const std::string good = torch_file_of("llama_torch/pytorch_model.bin");
  for (size_t size = 0; size < good.size(); size += 97) {
    const std::string path = write_new(scratch, good.substr(0, size));
    expect_error(Exit::checkpoint, {path, "cannot be read as a torch.save file"},
                 [&] { checkpoint::TorchFile file(path); });
  }
}

}  // namespace
}  // namespace cleave::testing
