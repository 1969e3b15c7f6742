#include "core/write_error.h"

#include <gtest/gtest.h>

namespace cleave {
namespace {

TEST(WriteError, HasAnActionForEachCause) {
  EXPECT_EQ(remedy_of_writing(ENOSPC), "free space there or choose another place");
  EXPECT_EQ(remedy_of_writing(EDQUOT), remedy_of_writing(ENOSPC));
  EXPECT_EQ(remedy_of_writing(EACCES), "choose a place in a folder you may write to");
  EXPECT_EQ(remedy_of_writing(EROFS), "choose another place");
}

}  // namespace
}  // namespace cleave
