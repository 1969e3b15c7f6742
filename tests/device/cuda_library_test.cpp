#include "device/cuda_library.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/scratch.h"

namespace cleave {
namespace {

namespace fs = std::filesystem;

constexpr const char *kFolders = "CLEAVE_CUDA_LIBRARIES", *kVariable = "CLEAVE_TEST_LIBRARY";

// stub_library.cpp has version 1.2.3.
CudaLibraryName stub(const char* file, int oldest = 10203) {
  return {"Stub", file, kVariable, "stub==1.*", "stub_version", false, oldest};
}

// A loaded library stays loaded, so each test loads files of other names.
class CudaLibraryTest : public ::testing::Test {
 protected:
  CudaLibraryTest() { clear(); }
  ~CudaLibraryTest() override { clear(); }

  std::string copy(const std::string& folder, const std::string& file) const {
    fs::create_directories(scratch_.folder() / folder);
    fs::copy_file(STUB_LIBRARY, scratch_.folder() / folder / file);
    return scratch_.path(folder + "/" + file);
  }
  void search(std::initializer_list<const char*> folders) const {
    std::string list;
    for (const char* folder : folders) list += scratch_.path(folder) + ":";
    setenv(kFolders, list.c_str(), 1);
  }

  const Scratch scratch_;

 private:
  static void clear() {
    unsetenv(kFolders);
    unsetenv(kVariable);
  }
};

TEST_F(CudaLibraryTest, IsTheOneOfTheFirstFolderThatHasIt) {
  const std::string path = copy("first", "libstub_first.so");
  copy("second", "libstub_first.so");
  search({"none", "", "first", "second"});
  CudaLibrary library(stub("libstub_first.so"));
  EXPECT_EQ(library.problem(), "");
  EXPECT_EQ(library.path(), path);
  EXPECT_EQ(library.place(), "Python package");
  EXPECT_EQ(library_version_text(library.version()), "1.2.3");
  int (*twice)(int) = nullptr;
  library.find("stub_twice", twice);
  ASSERT_NE(twice, nullptr);
  EXPECT_EQ(twice(21), 42);
}

TEST_F(CudaLibraryTest, PrefersTheOneThatTheProcessHasLoaded) {
  constexpr const char* name = "libcleave_stub.so.7";  // its soname
  fs::copy_file(NAMED_STUB_LIBRARY, scratch_.path("of_torch.so"));
  copy("packages", name);
  ASSERT_NE(dlopen(scratch_.path("of_torch.so").c_str(), RTLD_NOW | RTLD_LOCAL), nullptr);
  search({"packages"});
  const CudaLibrary library(stub(name));
  EXPECT_EQ(library.path(), scratch_.path("of_torch.so"));
  EXPECT_EQ(library.place(), "loaded by this process");
}

TEST_F(CudaLibraryTest, IsTheFileOfTheVariableAndNoOther) {
  copy("packages", "libstub_named.so");
  search({"packages"});
  setenv(kVariable, copy("mine", "mine.so").c_str(), 1);
  const CudaLibrary library(stub("libstub_named.so"));
  EXPECT_EQ(library.path(), scratch_.path("mine/mine.so"));
  EXPECT_EQ(library.place(), kVariable);

  setenv(kVariable, scratch_.write("broken.so", "text").c_str(), 1);
  const std::string problem = CudaLibrary(stub("libstub_named.so")).problem();
  EXPECT_TRUE(problem.starts_with("Stub: cannot be loaded (")) << problem;
  EXPECT_TRUE(problem.ends_with("; correct CLEAVE_TEST_LIBRARY, or unset it")) << problem;

  setenv(kVariable, "off", 1);
  EXPECT_EQ(CudaLibrary(stub("libstub_named.so")).problem(),
            "Stub: disabled by CLEAVE_TEST_LIBRARY=off; unset it");
}

TEST_F(CudaLibraryTest, ThatIsMissingIsOneLineWithTheCommandThatInstallsIt) {
  CudaLibrary library(stub("libstub_missing.so"));
  EXPECT_EQ(library.problem(),
            "Stub: cannot be loaded (libstub_missing.so: cannot open shared object file: No such file or "
            "directory); run pip install \"stub==1.*\", or set CLEAVE_TEST_LIBRARY to the file");
  EXPECT_EQ(library.version(), 0);
  int (*twice)(int) = nullptr;
  library.find("stub_twice", twice);
  EXPECT_EQ(twice, nullptr);
}

// The reason is the file that was meant, not the loader's failure to find another one.
TEST_F(CudaLibraryTest, ThatIsBrokenInAPackageIsTheReason) {
  fs::create_directories(scratch_.folder() / "packages");
  scratch_.write("packages/libstub_broken.so", "text");
  search({"packages"});
  const std::string problem = CudaLibrary(stub("libstub_broken.so")).problem();
  EXPECT_NE(problem.find(scratch_.path("packages/libstub_broken.so")), std::string::npos) << problem;
  EXPECT_EQ(problem.find('\n'), std::string::npos) << problem;
}

TEST_F(CudaLibraryTest, ThatIsTooOldOrLacksAFunctionCannotBeUsed) {
  const std::string path = copy("packages", "libstub_old.so");
  search({"packages"});
  CudaLibrary old(stub("libstub_old.so", 10300));
  EXPECT_EQ(old.problem(), "Stub: unsupported version (got 1.2.3, expected 1.3.0 or newer, in " + path +
                               "); run pip install \"stub==1.*\"");
  EXPECT_EQ(old.version(), 0);

  CudaLibrary library(stub("libstub_old.so"));
  EXPECT_EQ(library.problem(), "");
  int (*thrice)(int) = nullptr;
  library.find("stub_thrice", thrice);
  EXPECT_EQ(thrice, nullptr);
  EXPECT_EQ(library.problem(),
            "Stub: stub_thrice is missing in " + path + "; run pip install --upgrade \"stub==1.*\"");
  EXPECT_EQ(library.version(), 0);
}

TEST_F(CudaLibraryTest, MayWriteItsVersion) {
  copy("packages", "libstub_writes.so");
  search({"packages"});
  CudaLibraryName name = stub("libstub_writes.so");
  name.version_function = "stub_writes_version", name.writes_version = true;
  EXPECT_EQ(CudaLibrary(name).version(), 10203);
}

}  // namespace
}  // namespace cleave
