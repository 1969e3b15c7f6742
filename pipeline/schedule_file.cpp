#include "pipeline/schedule_file.h"

#include <nlohmann/json.hpp>
#include <sstream>

#include "core/error.h"
#include "core/input_file.h"
#include "core/json.h"
#include "pipeline/simulate.h"

namespace cleave::pipeline {
namespace {

struct Letter {
  char letter;
  Op op;
};
constexpr Letter kLetters[] = {
    {'F', Op::forward}, {'B', Op::backward}, {'I', Op::backward_input}, {'W', Op::backward_weight}};

// "F3" or "F3.1"
Instruction parse_word(const std::string& word, const std::string& where) {
  Instruction i;
  int read = 0;
  char letter = 0;
  const bool plain = std::sscanf(word.c_str(), "%c%6d%n", &letter, &i.micro, &read) == 2;
  bool good = plain && size_t(read) == word.size();
  if (plain && !good) {
    int more = 0;
    good = std::sscanf(word.c_str() + read, ".%6d%n", &i.chunk, &more) == 1 &&
           size_t(read + more) == word.size();
  }
  bool known = false;
  for (const Letter& l : kLetters)
    if (l.letter == letter) i.op = l.op, known = true;
  require(good && known && i.micro >= 0 && i.chunk >= 0, Exit::usage,
          "{}: \"{}\" is not a computation; write F3, B3, I3 or W3, and F3.1 for chunk 1", where, word);
  return i;
}

int integer(const nlohmann::json& file, const char* name, int otherwise, const std::string& where) {
  if (otherwise > 0 && !file.contains(name)) return otherwise;
  const bool good =
      file.contains(name) && file[name].is_number_integer() && file[name] >= 1 && file[name] <= 1'000'000;
  require(good, Exit::usage, "{}: \"{}\" must be an integer from 1 to 1000000", where, name);
  return file[name];
}

}  // namespace

std::string schedule_to_json(const Schedule& s) {
  nlohmann::ordered_json ranks = nlohmann::ordered_json::array();
  for (const InstructionList& list : s.ranks) {
    std::string text;
    for (const Instruction& i : list)
      for (const Letter& l : kLetters)
        if (l.op == i.op)
          text += fmt::format("{}{}{}{}", text.empty() ? "" : " ", l.letter, i.micro,
                              i.chunk > 0 ? fmt::format(".{}", i.chunk) : "");
    ranks.push_back(text);
  }
  const nlohmann::ordered_json file{{"stages", s.shape.stages},
                                    {"micro_batches", s.shape.micros},
                                    {"virtual_stages", s.shape.chunks},
                                    {"ranks", ranks}};
  return file.dump(1) + "\n";
}

Schedule schedule_from_json(const std::string& text, const std::string& where) {
  const nlohmann::json file = parse_json(text, where, Exit::usage);
  require(file.is_object(), Exit::usage, "{}: not a JSON object", where);
  for (const auto& [name, value] : file.items())
    require(name == "stages" || name == "micro_batches" || name == "virtual_stages" || name == "ranks",
            Exit::usage,
            "{}: unknown key \"{}\"; a schedule has stages, micro_batches, virtual_stages and ranks", where,
            name);
  Schedule s;
  s.shape = {integer(file, "stages", 0, where), integer(file, "micro_batches", 0, where),
             integer(file, "virtual_stages", 1, where)};
  const bool lists =
      file.contains("ranks") && file["ranks"].is_array() && int(file["ranks"].size()) == s.shape.stages;
  require(lists, Exit::usage, "{}: \"ranks\" must be a list of {} strings, one per stage", where,
          s.shape.stages);
  // Each computation is a word in the file and takes memory in the proof.
  const auto computations = int64_t(s.shape.micros) * s.shape.chunks;
  require(computations <= int64_t(text.size()), Exit::usage,
          "{}: \"ranks\" is too short (got {} bytes, expected the forwards of {} micro-batches in {} chunks)",
          where, text.size(), s.shape.micros, s.shape.chunks);
  for (int r = 0; r < s.shape.stages; ++r) {
    const nlohmann::json& line = file["ranks"][size_t(r)];
    require(line.is_string(), Exit::usage, "{}: rank {} must be a string such as \"F0 B0\"", where, r);
    std::istringstream words(line.get<std::string>());
    InstructionList list;
    for (std::string word; words >> word;) list.push_back(parse_word(word, where));
    s.ranks.push_back(with_transfers(list, s.shape, r));
  }
  const Simulation proof = simulate(s);
  require(proof.fault.empty(), Exit::usage, "{}: the schedule cannot run: {}", where, proof.fault);
  return s;
}

Schedule read_schedule(const std::string& path) {
  constexpr int64_t kLargest = int64_t{64} << 20;  // bytes
  return schedule_from_json(InputFile(path, Exit::usage).text(kLargest), path);
}

}  // namespace cleave::pipeline
