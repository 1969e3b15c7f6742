// Kernel loading of CUDA.
#pragma once
#include <string>

namespace cleave {

// Empty, or a warning that CUDA loads kernels at their first launch although several ranks wait for each
// other: CUDA started before set_cuda_environment, or the user configured it. Starts CUDA if the machine has
// it.
std::string problem_of_loading();

}  // namespace cleave
