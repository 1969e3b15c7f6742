#include "device/cuda_library.h"

#include <dlfcn.h>
#include <link.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "core/environment.h"
#include "core/error.h"

namespace cleave {
namespace {

namespace fs = std::filesystem;

// Folders of a list with colons between them.
std::vector<std::string> folders_of(std::string_view list) {
  std::vector<std::string> out;
  while (!list.empty()) {
    const size_t end = std::min(list.find(':'), list.size());
    if (end > 0) out.emplace_back(list.substr(0, end));
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return out;
}

// Library folders of the nvidia packages in the site-packages that contains this program as
// cleave/bin/cleave. The Python package sets CLEAVE_CUDA_LIBRARIES instead, but not on other hosts. Others
// can write next to a program in a shared folder, so only a package has neighbors, and only of its owner or
// root.
std::vector<std::string> folders_next_to_this_program() {
  std::vector<std::string> out;
  std::error_code none;
  const fs::path program = fs::read_symlink("/proc/self/exe", none);
  const fs::path package = program.parent_path().parent_path();
  const fs::path packages = package.parent_path() / "nvidia";
  struct stat own {
  }, theirs{};
  if (package.filename() != "cleave" || !fs::exists(package / "__init__.py", none)) return out;
  if (stat(program.c_str(), &own) != 0 || stat(packages.c_str(), &theirs) != 0) return out;
  if (theirs.st_uid != own.st_uid && theirs.st_uid != 0) return out;
  for (fs::directory_iterator at(packages, none), end; !none && at != end; at.increment(none))
    out.push_back((at->path() / "lib").string());
  std::sort(out.begin(), out.end());
  return out;
}

std::string path_of(void* handle, const std::string& file) {
  link_map* map = nullptr;
  const bool known = dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map && map->l_name[0] != '\0';
  return known ? map->l_name : file;
}

}  // namespace

std::string library_version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version % 10000 / 100, version % 100);
}

CudaLibrary::CudaLibrary(const CudaLibraryName& name) : name_(name) {
  load_first();
  if (handle_) require_version();
}

void CudaLibrary::load_first() {
  const std::string named = environment_value(name_.variable);
  if (named == "off") {
    problem_ = fmt::format("{}: disabled by {}=off; unset it", name_.name, name_.variable);
    return;
  }
  if (!named.empty()) {
    if (!load(named, 0, name_.variable))
      problem_ = fmt::format("{}: cannot be loaded ({}); correct {}, or unset it", name_.name, error_,
                             name_.variable);
    return;
  }
  const std::string file = name_.file;
  if (load(file, RTLD_NOLOAD, "loaded by this process")) return;
  error_.clear();
  std::vector<std::string> folders = folders_of(environment_value("CLEAVE_CUDA_LIBRARIES"));
  for (const std::string& folder : folders_next_to_this_program()) folders.push_back(folder);
  for (const std::string& folder : folders)
    if (std::error_code none; fs::exists(fs::path(folder) / file, none))
      if (load(fs::path(folder) / file, 0, "Python package")) return;
  if (load(file, 0, "loader path")) return;
  if (load("/usr/local/cuda/lib64/" + file, 0, "toolkit")) return;
  problem_ = fmt::format("{}: cannot be loaded ({}); run pip install \"{}\", or set {} to the file",
                         name_.name, error_, name_.package, name_.variable);
}

// Keeps the first error, which is about the preferred file.
bool CudaLibrary::load(const std::string& file, int flags, const char* place) {
  handle_ = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | flags);
  const char* error = handle_ ? nullptr : dlerror();
  if (error_.empty() && error) error_ = error;
  if (handle_) path_ = path_of(handle_, file), place_ = place;
  return handle_ != nullptr;
}

void CudaLibrary::require_version() {
  if (name_.writes_version) {
    int (*write)(int*) = nullptr;
    find(name_.version_function, write);
    if (!write) return;
    write(&version_);
  } else {
    size_t (*of_library)() = nullptr;
    find(name_.version_function, of_library);
    if (!of_library) return;
    version_ = int(of_library());
  }
  if (version_ >= name_.oldest) return;
  problem_ = fmt::format(
      "{}: unsupported version (got {}, expected {} or newer, in {}); run pip install \"{}\"", name_.name,
      library_version_text(version_), library_version_text(name_.oldest), path_, name_.package);
  version_ = 0;
}

void* CudaLibrary::found(const char* function) {
  void* address = handle_ ? dlsym(handle_, function) : nullptr;
  if (!address && problem_.empty()) {
    problem_ = fmt::format("{}: {} is missing in {}; run pip install --upgrade \"{}\"", name_.name, function,
                           path_, name_.package);
    version_ = 0;
  }
  return address;
}

}  // namespace cleave
