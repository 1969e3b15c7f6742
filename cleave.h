// Single include of a training program: job, configuration, models, engine and data. Their names are in
// `cleave`; the rest of the library has one namespace per folder. Examples: examples/train_mlp/main.cpp (a
// complete program), examples/own_layer/main.cpp (a custom layer), examples/encoder/main.cpp (an encoder).
//
//   Job, run_job                      this process as a rank: device, other ranks, exit code (launcher/job.h)
//   DsConfig, read_ds_config          reads and checks a ds_config.json (config_schema/read_config.h)
//   make_mlp, find_model, make_model  library models (model/mlp.h, presets.h, family.h)
//   Model, Layer, Axes                custom models (model/layer.h, axes.h)
//   Linear, Norm, Block, Dense, Half  parts of models; also AttentionHalf, MlpHalf, ClassifierHead (model/)
//   check_gradients                   tests a custom layer (model/check_gradients.h)
//   Engine                            steps, evaluation, checkpoints, generation (runtime/engine.h)
//   UnitEngine                        steps with passes outside the engine (runtime/unit_engine.h)
//   weight_names                      parameter names in published files (runtime/weight_names.h)
//   Batch, batch_of, TokenBatches     input of a step (device/batch.h, data/batch_loader.h)
//   plan_job                          memory plan of a job (plan/job_plan.h)
//   Progress, MetricsFile             output of a training (monitor/progress.h, metrics.h)
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
