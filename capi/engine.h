// An engine as the C interface hands it out, with the gradients of the unit that is being given.
#pragma once
#include <vector>

#include "capi/cleave_c.h"
#include "runtime/unit_engine.h"
#include "zero/gradient_shards.h"

struct cleave_engine {
  cleave_engine(const cleave::config::DsConfig& config, const char* model,
                std::vector<cleave::UnitSpec> its_units, cleave::comm::Communicator& world,
                const cleave::runtime::UnitOptions& options);

  // The slot of a parameter of a unit, whose slots are taken once until it is given.
  cleave::zero::GradientSlot& slot(int unit, int parameter);
  void give(int unit);

  std::vector<cleave::UnitSpec> units;
  cleave::runtime::UnitEngine engine;

 private:
  std::vector<std::vector<cleave::zero::GradientSlot>> slots_;  // by unit; empty: none are out
};

namespace cleave::capi {

// What a caller declares, a JSON text, as the engine knows units.
std::vector<UnitSpec> units_of(const char* units);

}  // namespace cleave::capi
