#include "app/run/run_options.h"

namespace cleave::app {

KeepRule keep_rule(const RunOptions& o, const config::DsConfig& c) {
  return {o.keep.value_or(c.checkpoint.nebula ? c.checkpoint.nebula_versions : RunOptions::kKept),
          o.keep_every};
}

}  // namespace cleave::app
