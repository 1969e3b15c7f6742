#include "python/capi/call.h"

#include <cstdlib>
#include <cstring>
#include <new>

#include "core/version.h"
#include "python/capi/cleave_c.h"

namespace cleave::capi {
namespace {

thread_local std::string last_error;

int failed(Exit exit, const char* what) {
  last_error = what;
  return int(exit);
}

}  // namespace

int call(const std::function<void()>& body) {
  try {
    body();
    return 0;
  } catch (const Error& e) {
    return failed(e.exit(), e.what());
  } catch (const std::bad_alloc&) {
    return failed(Exit::memory, "out of host memory");
  } catch (const std::exception& e) {
    return failed(Exit::internal, e.what());
  }
}

char* handed_over(const std::string& text) {
  auto* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (!copy) throw std::bad_alloc();
  std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

}  // namespace cleave::capi

int cleave_c_version() { return CLEAVE_C_VERSION; }
const char* cleave_version() { return cleave::build::version.data(); }
const char* cleave_error() { return cleave::capi::last_error.c_str(); }
void cleave_free_text(char* text) { std::free(text); }
