#!/usr/bin/env python3
"""Generates the forwarding functions of libascendcl.so and the do-nothing stubs.
usage: gen.py front acl_impl.cpp > acl_front.cpp
       gen.py stub NAME... > stub.c      (functions that return 0)
"""
import re,sys
if sys.argv[1]=='front':
    t=open(sys.argv[2]).read()
    print('#include "cann.h"\nSIM_API void npusim_count(const char *);\nstruct PtrAttr; struct PhysProp; struct PkgVersion; typedef int aclError; typedef void (*HostFn)(void *);')
    for m in re.finditer(r'^ACL\((.*?), (\w+), (\(.*?\)), (\(.*?\))\)(?=\s*(?:\{|$))',t,re.M):
        r,n,p,a=m.groups()
        print(f'SIM_API {r} {n}Impl {p}; SIM_API {r} {n} {p} {{ npusim_count("{n}"); return {n}Impl {a}; }}')
elif sys.argv[1]=='stub':
    print('#include <stdio.h>\n#include <stdlib.h>\nstatic void note(const char*n){static int on=-1; if(on<0){const char*e=getenv("NPUSIM_TRACE");on=e&&atoi(e);} if(on)fprintf(stderr,"[npusim stub] %s\\n",n);}')
    for n in sys.argv[2:]: print(f'long {n}(void){{note("{n}");return 0;}}')
