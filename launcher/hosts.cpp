#include "launcher/hosts.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "config_schema/base64.h"
#include "core/error.h"
#include "core/printable.h"
#include "launcher/slurm.h"

namespace cleave::launcher {
namespace {

constexpr int kMostSlots = 4096;
constexpr const char* kWanted = "expected NAME slots=N, such as worker-0 slots=4";

std::vector<std::string> cut_at(const std::string& text, char at) {
  std::vector<std::string> parts(1);
  for (const char c : text)
    if (c == at)
      parts.emplace_back();
    else
      parts.back() += c;
  return parts;
}

std::vector<std::string> words_in(const std::string& line) {
  std::vector<std::string> words(1);
  for (const char c : line)
    if (std::isspace(uint8_t(c))) {
      if (!words.back().empty()) words.emplace_back();
    } else {
      words.back() += c;
    }
  if (words.back().empty()) words.pop_back();
  return words;
}

int slot_number(const std::string& digits) {  // -1: not a slot number
  int n = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), n);
  return !digits.empty() && error == std::errc() && end == digits.data() + digits.size() && n >= 0 ? n : -1;
}

std::vector<int> first_slots(int n) {
  std::vector<int> slots = std::vector<int>(size_t(n));
  std::iota(slots.begin(), slots.end(), 0);
  return slots;
}

// Names of "worker-[01-04]"; throws with `where` if one is not a valid host name.
std::vector<std::string> names_of(const std::string& word, const std::string& where) {
  std::vector<std::string> names = {word};
  if (word.find_first_of("[]") != word.npos) {
    try {
      names = expand_node_list(word);
    } catch (const Error&) {
      fail(Exit::usage, "{}: malformed range (got {}, expected a form such as worker-[01-04])", where,
           in_quotes(word));
    }
  }
  for (const std::string& name : names)
    require(is_host_name(name), Exit::usage,
            "{}: {} is not a host name (expected letters, digits, '.', '-' and '_'); give users, ports and "
            "IPv6 addresses an alias in ~/.ssh/config",
            where, in_quotes(name));
  return names;
}

struct Chosen {
  std::string host;
  std::vector<int> slots;  // empty: all
};

// Parses "host1@host2:0,2"; each host once.
std::vector<Chosen> parse_filter(const std::string& text, const std::string& option) {
  std::vector<Chosen> list;
  for (const std::string& node : cut_at(text, '@')) {
    const size_t colon = node.find(':');
    const std::string host = node.substr(0, colon);
    require(is_host_name(host), Exit::usage, "{} {}: {} is not a host (expected HOST[:SLOT,...][@HOST...])",
            option, text, in_quotes(host));
    auto at = std::find_if(list.begin(), list.end(), [&](const Chosen& c) { return c.host == host; });
    if (at == list.end()) at = list.insert(list.end(), {host, {}});
    if (colon == node.npos) continue;
    for (const std::string& word : cut_at(node.substr(colon + 1), ',')) {
      const int slot = slot_number(word);
      require(slot >= 0, Exit::usage, "{} {}: {} is not a slot number (expected HOST[:SLOT,...][@HOST...])",
              option, text, in_quotes(word));
      at->slots.push_back(slot);
    }
  }
  return list;
}

Hosts filtered(const Hosts& hosts, const std::string& text, bool keep) {
  const std::string option = keep ? "--include" : "--exclude";
  Hosts result = hosts;
  if (keep)
    for (Host& h : result) h.slots.clear();
  for (const Chosen& c : parse_filter(text, option)) {
    const auto is_it = [&](const Host& h) { return h.name == c.host; };
    const auto host = std::find_if(hosts.begin(), hosts.end(), is_it);
    std::vector<std::string> names;
    for (const Host& h : hosts) names.push_back(h.name);
    require(host != hosts.end(), Exit::usage, "{} {}: unknown host {} (expected one of {})", option, text,
            c.host, fmt::join(names, ", "));
    const std::vector<int>& slots = c.slots.empty() ? host->slots : c.slots;
    std::vector<int>& kept = std::find_if(result.begin(), result.end(), is_it)->slots;
    for (const int slot : slots) {
      require(std::count(host->slots.begin(), host->slots.end(), slot) > 0, Exit::usage,
              "{} {}: {} has no slot {} (expected one of {})", option, text, c.host, slot,
              fmt::join(host->slots, ", "));
      std::erase(kept, slot);
      if (keep) kept.push_back(slot);
    }
    std::sort(kept.begin(), kept.end());
  }
  std::erase_if(result, [](const Host& h) { return h.slots.empty(); });
  require(!result.empty(), Exit::usage, "{} {}: leaves no slots", option, text);
  return result;
}

}  // namespace

bool is_host_name(std::string_view name) {
  const auto allowed = [](char c) { return std::isalnum(uint8_t(c)) || c == '.' || c == '-' || c == '_'; };
  return !name.empty() && name.size() <= 253 && std::isalnum(uint8_t(name[0])) &&
         std::all_of(name.begin(), name.end(), allowed);
}

Hosts parse_hostfile(std::string_view text, const std::string& file) {
  Hosts hosts;
  std::map<std::string, int> lines;
  const std::vector<std::string> all = cut_at(std::string(text), '\n');
  for (size_t i = 0; i < all.size(); ++i) {
    const std::vector<std::string> words = words_in(all[i]);
    if (words.empty() || words[0][0] == '#') continue;
    const std::string where = fmt::format("{}:{}", file, i + 1);
    constexpr std::string_view kSlots = "slots=";
    require(words.size() >= 2 && words[1].starts_with(kSlots), Exit::usage,
            "{}: {} has no number of slots; {}", where, in_quotes(words[0]), kWanted);
    const int slots = slot_number(words[1].substr(kSlots.size()));
    require(slots >= 1 && slots <= kMostSlots, Exit::usage,
            "{}: {} has an invalid number of slots (got {}); {} (N from 1 to {})", where, in_quotes(words[0]),
            in_quotes(words[1]), kWanted, kMostSlots);
    for (const std::string& name : names_of(words[0], where)) {
      const auto [first, is_new] = lines.emplace(name, int(i) + 1);
      require(is_new, Exit::usage, "{}: duplicate host {}, also in line {}", where, name, first->second);
      hosts.push_back({name, first_slots(slots)});
    }
  }
  require(!hosts.empty(), Exit::usage, "{}: contains no host; {}, one per line", file, kWanted);
  return hosts;
}

Hosts read_hostfile(const std::string& file) {
  std::ifstream in(file);
  require(bool(in), Exit::usage, "{}: the hostfile cannot be read: {}", file, std::strerror(errno));
  return parse_hostfile(std::string(std::istreambuf_iterator<char>(in), {}), file);
}

Hosts select_hosts(const Hosts& hosts, const HostFilter& f) {
  require(f.include.empty() || f.exclude.empty(), Exit::usage,
          "--include: conflicts with --exclude; give one of them");
  const bool numbers = f.num_nodes >= 0 || f.num_gpus >= 0;
  const bool names = !f.include.empty() || !f.exclude.empty();
  require(!numbers || !names, Exit::usage,
          "--num_nodes, --num_gpus: conflict with --include and --exclude; give one kind");
  require(f.num_nodes != 0 && f.num_gpus != 0, Exit::usage, "--num_nodes, --num_gpus: must be at least 1");
  if (names) return filtered(hosts, f.include.empty() ? f.exclude : f.include, f.exclude.empty());
  Hosts result = hosts;
  if (f.num_nodes > 0) {
    require(size_t(f.num_nodes) <= hosts.size(), Exit::usage,
            "--num_nodes: too large (got {}); there {} only {} host{}", f.num_nodes,
            hosts.size() == 1 ? "is" : "are", hosts.size(),
            hosts.size() == 1 ? "; a hostfile (-H) names more" : "s");
    result.resize(size_t(f.num_nodes));
  }
  for (Host& h : result) {
    if (f.num_gpus < 0) continue;
    require(size_t(f.num_gpus) <= h.slots.size(), Exit::usage,
            "--num_gpus: too large (got {}, but {} has only {} slot{})", f.num_gpus, h.name, h.slots.size(),
            h.slots.size() == 1 ? "" : "s");
    h.slots.resize(size_t(f.num_gpus));
  }
  return result;
}

int slots_named(const HostFilter& f) {
  int slots = 0;
  for (const auto& [text, option] : {std::pair(f.include, "--include"), std::pair(f.exclude, "--exclude")})
    for (const Chosen& c : text.empty() ? std::vector<Chosen>() : parse_filter(text, option))
      for (const int slot : c.slots) slots = std::max(slots, std::min(slot, kMostSlots - 1) + 1);
  return slots;
}

int ranks_of(const Hosts& hosts) {
  return std::accumulate(hosts.begin(), hosts.end(), 0,
                         [](int n, const Host& h) { return n + int(h.slots.size()); });
}

Hosts decode_world_info(const std::string& text) {
  const auto json = nlohmann::ordered_json::parse(config::decode_base64(text), nullptr, false);
  require(json.is_object() && !json.empty(), Exit::usage,
          "--world_info: is not the base64 of {{\"host\": [slots]}}: {}", in_quotes(text));
  Hosts hosts;
  for (const auto& [name, slots] : json.items()) {
    require(is_host_name(name) && slots.is_array() && !slots.empty() &&
                std::all_of(slots.begin(), slots.end(), [](const auto& s) { return s.is_number_unsigned(); }),
            Exit::usage, "--world_info: {} has no slot numbers", in_quotes(name));
    hosts.push_back({name, slots.template get<std::vector<int>>()});
  }
  return hosts;
}

}  // namespace cleave::launcher
