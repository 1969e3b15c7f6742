// Stands in for libpmix.so.2: ranks are processes with PMIX_RANK, and share files in PMIX_STANDIN_FOLDER.
// PMIX_STANDIN_FAILS names a call that fails with -1.
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

namespace {

// As in pmix_common.h of the library.
struct pmix_proc_t {
  char nspace[256];
  uint32_t rank;
};
struct pmix_value_t {
  uint16_t type;
  union {
    char* string;
    char largest[24];
  } data;
};

std::string text(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}
bool fails(const char* call) { return text("PMIX_STANDIN_FAILS") == call; }
std::string path(const std::string& key, const std::string& rank) {
  return text("PMIX_STANDIN_FOLDER") + "/" + key + "." + rank;
}

}  // namespace

extern "C" {

int PMIx_Init(pmix_proc_t* self, void*, size_t) {
  if (fails("PMIx_Init")) return -1;
  std::strcpy(self->nspace, "job");
  self->rank = uint32_t(std::stoi(text("PMIX_RANK")));
  return 0;
}

int PMIx_Put(uint8_t, const char key[], pmix_value_t* value) {
  std::ofstream(path(key, text("PMIX_RANK"))) << value->data.string;
  return fails("PMIx_Put") ? -1 : 0;
}

int PMIx_Commit() { return 0; }

int PMIx_Fence(const pmix_proc_t*, size_t, const void*, size_t) {
  std::ofstream(path("fence", text("PMIX_RANK"))) << "here";
  for (int r = 0; r < std::stoi(text("PMIX_STANDIN_SIZE")); ++r)
    while (!std::filesystem::exists(path("fence", std::to_string(r)))) usleep(1000);
  return 0;
}

int PMIx_Get(const pmix_proc_t* of, const char key[], const void*, size_t, pmix_value_t** value) {
  std::string found;
  std::ifstream(path(key, std::to_string(of->rank))) >> found;
  *value = new pmix_value_t{};
  (*value)->type = fails("PMIx_Get") ? 1 : 3;
  (*value)->data.string = strdup(found.c_str());
  return 0;
}

int PMIx_Finalize(const void*, size_t) { return 0; }
}
