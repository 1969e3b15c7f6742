// Reads saved checkpoints.
#include <nlohmann/json.hpp>

#include "core/json_path.h"
#include "core/units.h"
#include "python/capi/call.h"
#include "python/capi/cleave_c.h"
#include "runtime/saved_training.h"

using namespace cleave;
using capi::call, capi::given, capi::handed_over;

struct cleave_checkpoint {
  runtime::SavedTraining saved;
};

namespace {

std::string facts_of(const runtime::SavedTraining& saved) {
  nlohmann::json tensors = nlohmann::json::object();
  for (const auto& [name, stored] : saved.tensors("master")) tensors[name] = stored.shape;
  const runtime::TrainingState& at = saved.state().at;
  return nlohmann::json{{"path", path_in_json(saved.path().string())},
                        {"deepspeed", saved.by_deepspeed()},
                        {"step", at.step},
                        {"applied", at.applied},
                        {"skipped", at.skipped},
                        {"kinds", saved.kinds()},
                        {"tensors", tensors},
                        {"tied", saved.tied()},
                        {"client", nlohmann::json::parse(saved.state().client)}}
      .dump();
}

}  // namespace

int cleave_checkpoint_open(const char* folder, const char* tag, cleave_checkpoint** checkpoint) {
  return call([&] {
    auto opened = std::make_unique<cleave_checkpoint>(
        runtime::SavedTraining(&given(folder, "folder"), &given(tag, "tag")));
    opened->saved.as_published();
    given(checkpoint, "checkpoint") = opened.release();
  });
}

int cleave_checkpoint_facts(cleave_checkpoint* checkpoint, char** facts) {
  return call([&] { given(facts, "facts") = handed_over(facts_of(given(checkpoint, "checkpoint").saved)); });
}

int cleave_checkpoint_read(cleave_checkpoint* checkpoint, const char* kind, const char* tensor, int64_t count,
                           float* value) {
  return call([&] {
    given(checkpoint, "checkpoint")
        .saved.read_whole(&given(kind, "kind"), &given(tensor, "tensor"),
                          {&given(value, "value"), size_t(count)});
  });
}

int cleave_checkpoint_read_bytes(cleave_checkpoint* checkpoint, const char* tensor, int64_t bytes,
                                 void* value) {
  return call([&] {
    std::byte* to = &given(static_cast<std::byte*>(value), "value");
    given(checkpoint, "checkpoint").saved.read_bytes(&given(tensor, "tensor"), {to, size_t(bytes)});
  });
}

int cleave_file_of_each(const int64_t* bytes, int32_t count, const char* most, int32_t* files) {
  return call([&] {
    const int64_t room = parse_bytes(&given(most, "most"), "max_shard_size");
    int64_t held = 0;
    for (int32_t t = 0, file = 0; t < count; ++t) {
      if (held > 0 && held + bytes[t] > room) ++file, held = 0;
      files[t] = file, held += bytes[t];
    }
  });
}

void cleave_checkpoint_close(cleave_checkpoint* checkpoint) { delete checkpoint; }
