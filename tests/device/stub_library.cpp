// Stands for a CUDA library in cuda_library_test.cpp.
#include <cstddef>

extern "C" {

size_t stub_version() { return 10203; }
int stub_writes_version(int* version) { return *version = 10203, 0; }
int stub_twice(int x) { return 2 * x; }

}  // extern "C"
