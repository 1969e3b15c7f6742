#include "runtime/units_of_stages.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

namespace cleave::runtime {
namespace {

using Json = nlohmann::json;

// Description of a unit for other ranks, without initial values, which come from outside.
Json json_of(const UnitSpec& unit) {
  Json params = Json::array();
  for (const ParamSpec& p : unit.params) params.push_back({p.name, p.shape, p.decay});
  return {{"name", unit.name}, {"params", params},    {"frozen", unit.frozen},
          {"word", unit.word}, {"whole", unit.whole}, {"group", unit.group}};
}

Json json_of(const std::vector<UnitSpec>& units) {
  Json out = Json::array();
  for (const UnitSpec& unit : units) out.push_back(json_of(unit));
  return out;
}

UnitSpec unit_of(const Json& told) {
  UnitSpec unit{.name = told["name"],
                .params = {},
                .frozen = told["frozen"],
                .word = told["word"],
                .whole = told["whole"],
                .group = told["group"]};
  for (const Json& p : told["params"])
    unit.params.push_back({.name = p[0], .shape = p[1], .init = {}, .decay = p[2]});
  return unit;
}

// Throws with the first unit that differs between ranks of one stage.
void require_same(const std::string& model, const Json& mine, const Json& first) {
  for (size_t u = 0; u < std::max(mine.size(), first.size()); ++u) {
    const Json here = u < mine.size() ? mine[u] : Json(), there = u < first.size() ? first[u] : Json();
    require(
        here == there, Exit::usage,
        "{} has {} here, but {} on the first rank with the same layers; build the same model on every rank",
        model, here.is_null() ? "no unit more" : here.dump(),
        there.is_null() ? "no unit more" : there.dump());
  }
}

// Checkpoints identify parameters by name.
void require_names(const RankUnits& units) {
  std::set<std::string> names;
  for (const UnitSpec& u : units.all)
    for (const ParamSpec& p : u.params)
      require(names.insert(p.name).second, Exit::usage, "{}: duplicate parameter {}", units.model, p.name);
}

// Unit of the whole model, by name.
struct Told {
  Json unit;  // as described by the first stage that has it
  std::vector<int> holders;
};

std::vector<Told> together(const std::string& model, const std::vector<std::string>& of_stages) {
  std::vector<Told> all;
  std::map<std::string, size_t> at;
  for (int stage = 0; stage < int(of_stages.size()); ++stage)
    for (const Json& unit : Json::parse(of_stages[size_t(stage)])) {
      const auto [known, is_new] = at.emplace(unit["name"], all.size());
      if (is_new) {
        all.push_back({unit, {stage}});
        continue;
      }
      Told& told = all[known->second];
      require(told.holders.back() < stage, Exit::usage, "{}: duplicate unit {}", model, known->first);
      for (const char* key : {"params", "frozen", "word", "whole", "group"})
        require(told.unit[key] == unit[key], Exit::usage,
                "pipeline: stages {} and {} of {} share {}, but their {} differ ({}, {}); make them equal",
                told.holders.back(), stage, model, known->first, key, told.unit[key].dump(),
                unit[key].dump());
      told.holders.push_back(stage);
    }
  return all;
}

}  // namespace

RankUnits units_of_stages(Ranks& ranks, std::string model, const std::vector<UnitSpec>& mine,
                          const std::vector<std::vector<UnitSpec>>& planned, int uses) {
  const Json own = json_of(mine);
  std::vector<std::string> of_stages;
  for (const std::vector<UnitSpec>& units : planned) of_stages.push_back(json_of(units).dump());
  if (of_stages.empty()) of_stages = ranks.texts(*ranks.mesh().pipe, own.dump());
  RankUnits out{.model = std::move(model), .all = {}, .holders = {}, .held = {}, .most_uses = uses};
  ranks.agree([&] {
    for (Told& told : together(out.model, of_stages)) {
      out.all.push_back(unit_of(told.unit));
      out.holders.push_back(std::move(told.holders));
    }
    require_names(out);
  });
  const std::vector<std::string> of_data = ranks.texts(*ranks.mesh().data, own.dump());
  // Planned ranks exchange nothing.
  ranks.agree([&] {
    if (!of_data.front().empty()) require_same(out.model, own, Json::parse(of_data.front()));
  });
  for (const UnitSpec& unit : mine)
    for (int u = 0; u < int(out.all.size()); ++u)
      if (out.all[size_t(u)].name == unit.name) out.all[size_t(u)] = unit, out.held.push_back(u);
  return out;
}

}  // namespace cleave::runtime
