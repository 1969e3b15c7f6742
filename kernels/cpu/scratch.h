// Temporary memory of a kernel call. Freed blocks are kept for later calls, because fresh pages cost more
// than the work done in them. The kept memory is bounded and shared by all threads.
#pragma once
#include <cstddef>
#include <cstdint>

namespace cleave::kernels::cpu {

// Uninitialized, 64-byte aligned, freed on destruction. Blocks of 2 MiB or more use huge pages if granted.
class Scratch {
 public:
  explicit Scratch(int64_t bytes);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  void* data() const { return data_; }
  float* floats() const { return static_cast<float*>(data_); }

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace cleave::kernels::cpu
