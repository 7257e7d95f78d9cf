#pragma once
// Where train::sharded_loop() was declared before its header moved; programs that include this continue.

#include "trireme/train/run/sharded_loop.h"  // IWYU pragma: export
