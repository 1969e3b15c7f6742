// JSON values of plans.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "core/mesh_shape.h"
#include "device/memory.h"

namespace cleave::plan {

// Example: {"pipe": 1, "data": 2, ...}
inline nlohmann::json as_json(const MeshShape& mesh) {
  nlohmann::json out = nlohmann::json::object();
  for (const MeshAxis& a : kMeshAxes) out[std::string(name_of(a.axis))] = mesh.*a.size;
  return out;
}

// Contains only nonzero values: {"device": {"weights": 1024}}.
inline nlohmann::json as_json(const MemoryTable& t) {
  nlohmann::json out = nlohmann::json::object();
  for (int k = 0; k < kMemoryKinds; ++k)
    for (int c = 0; c < kCategories; ++c)
      if (const int64_t bytes = t.at(MemoryKind(k), Category(c)))
        out[std::string(name_of(MemoryKind(k)))][std::string(name_of(Category(c)))] = bytes;
  return out;
}

}  // namespace cleave::plan
