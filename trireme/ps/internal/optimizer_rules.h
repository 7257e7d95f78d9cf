#pragma once
// The rules of the table in optimizer.cpp. Each is the arithmetic of the optimizer of the same name above the
// torch line, element by element in f32. The common factors of all elements are computed in f64 first. The
// source is compiled without contraction of a * b + c, so that every machine gives the same bits.

#include "trireme/ps/optimizer.h"

namespace trireme::ps {

const OptimizerRule& sum_rule();
const OptimizerRule& sgd_rule();
const OptimizerRule& adagrad_rule();
const OptimizerRule& rowwise_adagrad_rule();
const OptimizerRule& adam_rule();
const OptimizerRule& adamw_rule();
const OptimizerRule& rmsprop_rule();
const OptimizerRule& ftrl_rule();
const OptimizerRule& lamb_rule();

}  // namespace trireme::ps
