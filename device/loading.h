// When CUDA loads kernels.
#pragma once
#include <string>

namespace cleave {

// Empty, or that CUDA loads kernels when they are first launched, where several ranks wait for each other:
// because it had started before set_cuda_environment, or the user wants it so. Starts CUDA where it is there.
std::string problem_of_loading();

}  // namespace cleave
