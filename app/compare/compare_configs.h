#pragma once
#include "app/arguments.h"

namespace cleave::app {

// `cleave compare A.json B.json ...`: trains the same model on the same data with both ds_configs and
// compares losses, gradients and updates. Returns Exit::training if they differ.
int compare_configs(const Arguments& arguments);

}  // namespace cleave::app
