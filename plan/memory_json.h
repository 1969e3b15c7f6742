// A table of bytes in JSON, of what is not nothing: {"device": {"weights": 1024}}.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "device/memory.h"

namespace cleave::plan {

inline nlohmann::json as_json(const MemoryTable& t) {
  nlohmann::json out = nlohmann::json::object();
  for (int k = 0; k < kMemoryKinds; ++k)
    for (int c = 0; c < kCategories; ++c)
      if (const int64_t bytes = t.at(MemoryKind(k), Category(c)))
        out[std::string(name_of(MemoryKind(k)))][std::string(name_of(Category(c)))] = bytes;
  return out;
}

}  // namespace cleave::plan
