#include "app/commands.h"
#include "app/compare/compare_configs.h"

namespace cleave::app {

int run_compare(const Arguments& arguments) { return compare_configs(arguments); }

}  // namespace cleave::app
