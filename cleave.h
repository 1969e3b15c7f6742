// All that a training program includes: a job, its configuration, models, the engine and data; their names
// stand in `cleave`, and the rest of the library in a namespace a folder. A whole program is
// examples/train_mlp/main.cpp; one with a layer of its own is examples/own_layer/main.cpp,
// and an encoder examples/encoder/main.cpp.
//
//   Job, run_job                      this process as a rank: device, other ranks, exit code   launcher/job.h
//   DsConfig, read_ds_config          a ds_config.json, read and checked       config_schema/read_config.h
//   make_mlp, find_model, make_model  models of the library   model/mlp.h, model/presets.h, model/family.h
//   Model, Layer, Axes                models of one's own                       model/layer.h, model/axes.h
//   Linear, Norm, Block, AttentionHalf, MlpHalf, ClassifierHead      what they may be made of         model/
//   check_gradients                   a test of a layer of one's own     model/check_gradients.h
//   Engine                            steps, evaluation, checkpoints, texts     runtime/engine.h
//   UnitEngine                        a step whose passes run elsewhere  runtime/unit_engine.h
//   weight_names                      what published files call parameters      runtime/weight_names.h
//   Batch, batch_of, TokenBatches     what steps are fed with       device/batch.h, data/batch_loader.h
//   plan_job                          what a job will take                 plan/job_plan.h
//   Progress, MetricsFile             what it tells      monitor/progress.h, monitor/metrics.h
#pragma once
#include "data/batch_loader.h"
#include "launcher/job.h"
#include "model/attention_half.h"
#include "model/block.h"
#include "model/check_gradients.h"
#include "model/classifier_head.h"
#include "model/family.h"
#include "model/linear.h"
#include "model/mlp.h"
#include "model/mlp_half.h"
#include "model/presets.h"
#include "monitor/metrics.h"
#include "monitor/progress.h"
#include "plan/job_plan.h"
#include "runtime/engine.h"
#include "runtime/unit_engine.h"
#include "runtime/weight_names.h"

namespace cleave {

using comm::Communicator;
using config::DsConfig, config::ReadOptions, config::ReadResult, config::read_ds_config;
using data::EvalBatches, data::EvalBatchesOptions, data::Sampler, data::TokenBatches,
    data::TokenBatchesOptions, data::TokenSource;
using launcher::Job, launcher::JobOptions, launcher::run_job;
using model::AttentionHalf, model::Block, model::ClassifierHead, model::Dense, model::Half, model::Linear,
    model::MlpHalf, model::Norm, model::RowDropout;
using model::Axes, model::Family, model::Model, model::ModelConfig, model::find_model, model::make_mlp,
    model::make_model, model::MlpConfig;
using model::BackwardArgs, model::BackwardPart, model::DeclaredUnit, model::ForwardArgs, model::Head,
    model::HeadArgs, model::Layer, model::ParamGradient, model::Parameter, model::TensorSpec;
using model::check_gradients, model::GradientCheck;
using model::kGemma2, model::kGemma3, model::kGpt2, model::kLlama, model::kMistral, model::kPhi3,
    model::kQwen2, model::kQwen3;
using monitor::MetricsFile, monitor::Progress, monitor::ProgressOptions, monitor::StepMetrics;
using plan::JobPlan, plan::plan_job;
using runtime::Engine, runtime::EngineOptions, runtime::Evaluation, runtime::ModelFactory,
    runtime::StepResult, runtime::TextPart, runtime::UnitEngine, runtime::UnitOptions, runtime::model_dtype,
    runtime::weight_names;
using tensor_parallel::SequenceAxis;
using tensor_parallel::TensorAxis;

}  // namespace cleave
