#include "config_schema/keys.h"

namespace cleave::config {

// "async" is an addition to DeepSpeed's keys; the decoupled writer and Nebula have the same
// meaning.
void describe_checkpoint(Keys& k, CheckpointConfig& c) {
  k.section("checkpoint", "checkpoints");
  k.honoured("async", &c.async,
             "keeps a copy of this rank's state in host memory: a save fills the copy, and a thread writes "
             "it to disk during the next steps");
  k.honoured(
       "tag_validation", &c.tag_validation,
       "ranks of a script that save with different tags: Fail is an error, Warn and Ignore save with the "
       "tag of the first rank, with and without a warning")
      .only_in(Front::scripts)
      .ignoring_case();
  k.no_effect("load_universal", "b=false", "every checkpoint loads on any number of ranks");
  k.refused("use_node_local_storage", "b=false", "all ranks write to one folder");
  k.section("checkpoint.parallel_write", "distribution of the writes over the ranks");
  k.no_effect("pipeline_stage", "b=false", "every rank writes its part of each layer");
  k.section("checkpoint", "");
  k.no_effect("checkpoint_serialization", "b=true", "checkpoints are safetensors files");
  k.section("checkpoint.writer", "file writer");
  k.honoured("decoupled", &c.decoupled, "the same as checkpoint.async");
  k.no_effect("type", "s=\"FAST\"", "checkpoints have one writer")
      .one_of({"MOCK", "PYTHON", "FAST"})
      .ignoring_case()
      .or_null();
  k.no_effect("io_buffer_size", "i=67108864", "files are written in pieces of 4 MiB");
  k.no_effect("io_buffer_double", "b=true", "four pieces of 4 MiB are filled and written in turn");
  k.no_effect("show_statistics", "b=false", "the time of a background save is always printed");
  k.no_effect("data_parallel", "s?=null", "replicas share the work: each byte is written once");
  k.no_effect("io_multiplier", "i=1", "every rank writes one file");
  k.section("nebula", "Nebula checkpoints");
  k.honoured("enabled", &c.nebula, "the same as checkpoint.async");
  k.honoured("num_of_version_in_retention", &c.nebula_versions,
             "with nebula.enabled, number of newest checkpoints to keep, unless --keep is given")
      .not_in_scripts("it keeps all checkpoints")
      .at_least(0);
  k.no_effect("persistent_time_interval", "i=100",
              "every save goes to disk; set --save_interval and --save_minutes");
  k.no_effect("enable_nebula_load", "b=true", "--resume decides whether a checkpoint is loaded");
  k.refused("nebula_load_path", "s?=null", "checkpoints are loaded from --output");
  k.warned("persistent_storage_path", "s?=null",
           "checkpoints are written to --output, or to the folder of engine.save_checkpoint");
}

}  // namespace cleave::config
