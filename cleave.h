// All that a training program includes: a job, its configuration, models, the engine and data. A whole one is
// examples/train_mlp/main.cpp; one with a layer of its own is examples/own_layer/main.cpp.
//
//   Job, run_job                      this process as a rank: device, other ranks, exit code   launcher/job.h
//   DsConfig, read_ds_config          a ds_config.json, read and checked       config_schema/read_config.h
//   make_mlp, find_model, make_model  models of the library   model/mlp.h, model/presets.h, model/family.h
//   Model, Layer, Axes                models of one's own                       model/layer.h, model/axes.h
//   Engine                            steps, evaluation, checkpoints, texts     runtime/engine.h
//   weight_names                      what published files call parameters      runtime/weight_names.h
//   Batch, batch_of, TokenBatches     what steps are fed with       device/batch.h, data/batch_loader.h
#pragma once
#include "data/batch_loader.h"
#include "launcher/job.h"
#include "model/family.h"
#include "model/mlp.h"
#include "model/presets.h"
#include "runtime/engine.h"
#include "runtime/weight_names.h"
