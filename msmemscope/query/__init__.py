"""A recorded run as tables: for notebooks, scripts and SQL. opened.py is the front; rows.py gives numbers and ids their
texts, sql.py lays views over the run's files. Called by `msmemscope.open_run`; reads alone, through tables/ and, where
a derived file is not there, through report/.
"""
