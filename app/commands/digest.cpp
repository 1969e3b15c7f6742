#include "checkpoint/digest.h"

#include <cstdio>

#include "app/commands.h"
#include "app/commands/checkpoint_options.h"
#include "app/parse.h"
#include "app/published_model.h"
#include "core/error.h"
#include "core/printable.h"
#include "model/presets.h"

namespace cleave::app {
namespace {

// Returns the digests that an import would have: parameters with their names here, as masters.
std::map<std::string, std::string> digests_of_published(const CheckpointOptions& o, DType as) {
  const PublishedModel model(o.dir, published_config(o.dir));
  model.reader().require_tied();
  std::vector<checkpoint::NamedShape> tensors;
  for (const checkpoint::WeightName& w : model.names().tensors)
    tensors.push_back({"master", w.tensor, w.shape});
  return checkpoint::digests(
      tensors, [&](const checkpoint::Record& r) { model.reader().read(r); }, threads_of(o), as);
}

}  // namespace

int run_digest(const Arguments& arguments) {
  CLI::App app(
      "Prints layout-independent hashes of a checkpoint's weights and optimizer state, or of the weights of "
      "a published model (equal to those of its import).\nExample: cleave digest runs/quickstart/checkpoints",
      "digest");
  CheckpointOptions o;
  std::string dtype = "fp32";
  add_options(app, o);
  add_threads(app, o);
  app.add_option("--dtype", dtype, "round the values to this type first, as export does")
      ->capture_default_str()
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  if (!parse(app, arguments)) return 0;
  const DType as = dtype == "bf16" ? DType::bf16 : dtype == "fp16" ? DType::fp16 : DType::fp32;
  model::require_one_meaning(o.dir);
  auto all = is_published_model(o.dir) ? digests_of_published(o, as)
                                       : checkpoint::digests(open(o), threads_of(o), as);
  if (const auto weights = all.extract("master")) std::printf("%s  weights\n", weights.mapped().c_str());
  for (const auto& [kind, digest] : all) std::printf("%s  %s\n", digest.c_str(), printable(kind).c_str());
  return 0;
}

}  // namespace cleave::app
