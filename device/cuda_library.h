// CUDA libraries that are loaded at run time, so the same build runs with and without them. Only this file
// decides where to look for them.
#pragma once
#include <string>
#include <type_traits>

namespace cleave {

struct CudaLibraryName {
  const char* name;
  const char* file;      // soname
  const char* variable;  // environment variable that names another file, or is off
  const char* package;   // requirement for pip
  const char* version_function;
  bool writes_version;  // to its argument; else the function returns it
  int oldest;           // 91900 is 9.19.0
};

inline constexpr CudaLibraryName kCublasLt{
    "cuBLASLt", "libcublasLt.so.13", "CLEAVE_CUBLASLT", "nvidia-cublas==13.*", "cublasLtGetVersion", false,
    130000};
inline constexpr CudaLibraryName kCudnn{
    "cuDNN", "libcudnn.so.9", "CLEAVE_CUDNN", "nvidia-cudnn-cu13", "cudnnGetVersion", false, 90000};
// 2.26 is the first version that orders the calls of several communicators and whose allocator uses the
// granularity that CUDA recommends for a GPU.
inline constexpr CudaLibraryName kNccl{"NCCL",           "libnccl.so.2", "CLEAVE_NCCL", "nvidia-nccl-cu13",
                                       "ncclGetVersion", true,           22600};

// A library that stays loaded until the process ends. Takes the first that loads: the file that the variable
// names, which has no alternative; a library of this process, such as the one that torch loaded; a file in
// the folders of CLEAVE_CUDA_LIBRARIES; a file of the Python packages next to the package that contains this
// program; a file on the loader's path; a file of the toolkit in /usr/local/cuda.
class CudaLibrary {
 public:
  explicit CudaLibrary(const CudaLibraryName& name);

  // Reason why the library cannot be used, with an action; empty if it can.
  const std::string& problem() const { return problem_; }
  const std::string& path() const { return path_; }    // file of the loaded library
  const std::string& place() const { return place_; }  // "Python package"
  int version() const { return version_; }             // 0 with a problem

  // Sets `function` to the function of this name; without it, to null, and problem() names it.
  template <class Function>
  void find(const char* name, Function& function) {
    function = reinterpret_cast<std::remove_reference_t<Function>>(found(name));
  }

 private:
  bool load(const std::string& file, int flags, const char* place);
  void load_first();
  void require_version();
  void* found(const char* function);

  CudaLibraryName name_;
  void* handle_ = nullptr;
  std::string problem_, error_, path_, place_;
  int version_ = 0;
};

std::string library_version_text(int version);  // "9.19.0"

}  // namespace cleave
