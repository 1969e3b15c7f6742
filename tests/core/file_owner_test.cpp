#include "core/file_owner.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "tests/scratch.h"

namespace cleave {
namespace {
namespace fs = std::filesystem;

TEST(TrustedFile, IsWritableByTrustedUsersOnly) {
  const Scratch scratch;
  const std::string file = scratch.write("file", "x"), link = scratch.path("link");
  fs::create_symlink(file, link);
  ASSERT_EQ(::chmod(scratch.folder().c_str(), 0755), 0);
  EXPECT_TRUE(is_trusted_file(file));
  EXPECT_TRUE(is_trusted_file(link));
  EXPECT_FALSE(is_trusted_file(scratch.path("none")));
  ASSERT_EQ(::chmod(file.c_str(), 0666), 0);
  EXPECT_FALSE(is_trusted_file(file));
  EXPECT_FALSE(is_trusted_file(link));
  ASSERT_EQ(::chmod(scratch.folder().c_str(), 01777), 0);
  EXPECT_FALSE(is_trusted_file(file));
  ASSERT_EQ(::chmod(scratch.folder().c_str(), 0777), 0);  // as mounts show files to all
  EXPECT_TRUE(is_trusted_file(file));
}

TEST(TrustedFile, IsNotOwnedByAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root gives files away";
  const Scratch scratch;
  const std::string file = scratch.write("file", "x");
  ASSERT_EQ(::lchown(file.c_str(), 65534, 65534), 0);
  EXPECT_FALSE(is_trusted_file(file));
  ASSERT_EQ(::chown(scratch.folder().c_str(), 65534, 65534), 0);
  EXPECT_TRUE(is_trusted_file(file));  // root works in a user's folder, as in a container
}

}  // namespace
}  // namespace cleave
