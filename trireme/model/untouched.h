#pragma once
// Guards for forwards without effects on training: those that infer shapes, evaluate, measure, or run a
// second time. The destructor restores the state at construction, after an exception too. They nest. One
// thread per module; random numbers are those of the process's default generator of the CPU.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>
#include <utility>
#include <vector>

#include "trireme/model/layer.h"

namespace trireme::model {

/// The modules, with all that they hold, are in evaluation mode. After it each of them, holder and held, is
/// in the mode that its owner had put it into.
class EvaluationMode {
 public:
  explicit EvaluationMode(const torch::nn::Module& module);
  explicit EvaluationMode(const std::vector<Layer>& layers);
  ~EvaluationMode();
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  void enter();

  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>>
      before_;  ///< holders before their contents
};

/// Buffers (running statistics) and random numbers are free to change. After it they continue from where they
/// were.
class Untouched {
 public:
  explicit Untouched(const torch::nn::Module& module);
  explicit Untouched(const std::vector<Layer>& layers);
  explicit Untouched(const Tensors& buffers);
  ~Untouched();
  Untouched(const Untouched&) = delete;
  Untouched& operator=(const Untouched&) = delete;

 private:
  void keep(const at::Tensor& buffer);

  std::vector<at::Tensor> random_;
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers_;
};

/// Where random numbers continue from: those of the CPU, and of this thread's device.
std::vector<at::Tensor> random_state();
void set_random_state(const std::vector<at::Tensor>& states);

}  // namespace trireme::model
