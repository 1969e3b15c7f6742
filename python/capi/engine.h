// Engines of the C interface: one that its caller drives by units, or one that computes a published
// model itself.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "python/capi/caller_stream.h"
#include "python/capi/cleave_c.h"
#include "python/capi/reports.h"
#include "runtime/saved_training.h"
#include "runtime/unit_engine.h"

// Common interface of both. Parameters have the names and shapes of the caller's declaration.
struct cleave_engine : std::enable_shared_from_this<cleave_engine> {
  std::shared_ptr<cleave_engine> handle;                    // of the caller, until cleave_engine_free
  std::shared_ptr<cleave::capi::CallerStream> caller = {};  // null on a CPU
  std::unique_ptr<cleave::capi::Reports> reports = {};      // the engine computes with their communicator

  virtual ~cleave_engine() = default;
  virtual cleave::runtime::EngineBase& base() = 0;

  virtual void begin_step(int micros) = 0;
  virtual double scale() = 0;
  virtual cleave::runtime::StepResult finish_step(std::span<const double> losses,
                                                  std::span<const cleave::optim::Rates> rates) = 0;
  virtual std::map<std::string, std::vector<int64_t>> shapes() = 0;  // of all parameters
  // Returns the layers that the engine computes, for a profile; empty if its caller computes.
  virtual std::optional<cleave::monitor::ProfiledEngine> profiled() const { return {}; }
  virtual int64_t unforeseen() const { return 0; }
  virtual int64_t vocabulary() const { return 0; }  // 0 unless the engine computes the model
  virtual void take_first(int unit, cleave::Tensor value) = 0;

  // Location of parameters (cleave_acquire).
  virtual void begin_pass(int kind, bool last) = 0;
  virtual void end_pass() = 0;
  virtual bool gathers(int unit) = 0;
  virtual std::vector<void*> acquire(int unit) = 0;
  virtual void release(int unit) = 0;
  // Returns true if the matrix at this address is stored transposed: its columns are the caller's
  // rows.
  virtual bool lies_turned(const void*) const { return false; }
  virtual std::vector<float> gradient(const std::string& name) = 0;
  virtual void write_gradient(const std::string& name, std::span<const float> whole) = 0;

  virtual std::vector<float> parameter(const std::string& name, int kind) = 0;
  virtual void write_parameter(const std::string& name, std::span<float> whole, int kind) = 0;
  virtual std::vector<float> own_master(const std::string& name) = 0;
  // Opens a saved checkpoint with the engine's parameter names.
  virtual cleave::runtime::SavedTraining opened(const std::string& folder, const std::string& tag) = 0;
  // Returns the client record of a checkpoint: the caller's, with the additions of the engine.
  virtual std::string kept(const std::string& client) { return client; }
};

namespace cleave::capi {

struct UnitEngine : cleave_engine {
  UnitEngine(const config::DsConfig& config, const char* model, std::vector<UnitSpec> its_units,
             comm::Communicator& world, const runtime::UnitOptions& options);

  runtime::EngineBase& base() override { return engine; }
  void begin_step(int micros) override { engine.begin_step(micros); }
  double scale() override { return engine.scale(); }
  runtime::StepResult finish_step(std::span<const double> losses,
                                  std::span<const optim::Rates> rates) override {
    return engine.finish_step(losses, rates);
  }
  int64_t unforeseen() const override { return engine.unforeseen(); }
  std::map<std::string, std::vector<int64_t>> shapes() override;
  void take_first(int unit, Tensor value) override { engine.take_first(unit, value); }
  void begin_pass(int kind, bool last) override { engine.begin_pass(kind, last); }
  void end_pass() override { engine.end_pass(); }
  bool gathers(int unit) override { return engine.gathers(unit); }
  std::vector<void*> acquire(int unit) override;
  void release(int unit) override { engine.release(unit); }
  std::vector<float> gradient(const std::string& name) override { return engine.gradient(name); }
  void write_gradient(const std::string& name, std::span<const float> whole) override {
    engine.write_gradient(name, whole);
  }
  std::vector<float> parameter(const std::string& name, int kind) override {
    return engine.parameter(name, kind);
  }
  void write_parameter(const std::string& name, std::span<float> whole, int kind) override {
    engine.write_parameter(name, whole, kind);
  }
  std::vector<float> own_master(const std::string& name) override { return engine.own_master(name); }
  runtime::SavedTraining opened(const std::string& folder, const std::string& tag) override;

  std::vector<UnitSpec> units;
  runtime::UnitEngine engine;
};

// Returns the engine that its caller drives; Error(internal) for one that computes by itself.
UnitEngine& unit_engine(cleave_engine& engine);

// Runs a function of the C interface in the order of the stream on which the caller works.
int call(cleave_engine* engine, const std::function<void(cleave_engine&)>& body);

}  // namespace cleave::capi
