// One reader with libFuzzer, which mutates inputs that reach new code. The reader itself provides
// valid files, so that no corpus folder is needed.
#include <algorithm>
#include <cstring>

#include "tests/fuzz/mutation.h"
#include "tests/fuzz/readers.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t most);

static const cleave::FuzzedReader& reader() {
  static const cleave::FuzzedReader& it = cleave::fuzzed_reader(CLEAVE_FUZZED_READER);
  return it;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  reader().read(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned int seed) {
  static const std::vector<std::string> whole = reader().seeds();
  cleave::Mutation mutation(seed);
  std::string next;
  if (size < 4 || mutation.pick(1000) == 0)
    next = whole[mutation.pick(whole.size())];
  else if (mutation.pick(2) == 0)
    return LLVMFuzzerMutate(data, size, most);
  else
    next = mutation.of(std::string(reinterpret_cast<const char*>(data), size));
  const size_t taken = std::min(next.size(), most);
  std::memcpy(data, next.data(), taken);
  return taken;
}
