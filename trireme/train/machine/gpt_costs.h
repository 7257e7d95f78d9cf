#pragma once
// The costs of a GPT on a described machine, by its shapes alone: operations, bytes of memory that they read
// and write, bytes that a backward needs. A product takes the longer of its operations and its bytes
// (roofline: Williams et al., CACM 52, 2009); all else takes its bytes. Pure.

#include <cstdint>

#include "trireme/model/gpt.h"
#include "trireme/train/estimate/model_costs.h"
#include "trireme/train/machine/machine.h"
#include "trireme/train/planner/model_form.h"

namespace trireme::train {

struct GptOnMachine {
  model::GptOptions model;
  ModelForm form;
  double flop_s = 0;  ///< of large products
  double memory_bytes_per_s = 0;
  int operand_bytes = 4;  ///< of an element that products take: 2 with autocast
  LinkLevels links;
};

/// The model's layers on a micro-batch, as measure_costs() would find them.
ModelUse gpt_use(const GptOnMachine& gpt, std::int64_t samples);

/// Operations of a step's forward and backward, without recomputation: three times the forward's.
double gpt_flops(const model::GptOptions& model, std::int64_t samples);

}  // namespace trireme::train
